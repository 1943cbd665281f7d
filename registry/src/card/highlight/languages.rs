//! What the lexer knows of each language. The tables are not complete: they have the words that readers look for.

/// A language that has colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Language {
    C,
    Console,
    Dockerfile,
    Go,
    JavaScript,
    Jinja,
    Json,
    Modelfile,
    Python,
    Rust,
    Shell,
    Toml,
    Yaml,
}

/// How a language differs from those with words, strings and comments only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Code,
    /// A shell's commands after prompts, between their output.
    Console,
    /// Instructions at the beginning of lines, with variables.
    Instructions,
    Json,
    Rust,
    Shell,
    /// Tags in other text.
    Template,
    Toml,
    Yaml,
}

impl Shape {
    pub(super) fn has_islands(self) -> bool {
        matches!(self, Shape::Console | Shape::Template)
    }

    /// Whether blanks separate words, so that `#`, `-` and quotes may be parts of words.
    pub(super) fn separates_words(self) -> bool {
        matches!(self, Shape::Console | Shape::Instructions | Shape::Shell | Shape::Toml | Shape::Yaml)
    }

    pub(super) fn has_variables(self) -> bool {
        matches!(self, Shape::Console | Shape::Instructions | Shape::Shell)
    }

    /// Whether keywords are such at the beginning of a line only.
    pub(super) fn has_instructions(self) -> bool {
        self == Shape::Instructions
    }
}

pub(super) struct Quote {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    pub(super) has_escapes: bool,
    pub(super) is_multiline: bool,
    /// One character, as in C. What is longer is no literal.
    pub(super) is_literal: bool,
}

const fn quote(open: &'static str) -> Quote {
    Quote { open, close: open, has_escapes: true, is_multiline: false, is_literal: false }
}

const fn long_quote(open: &'static str) -> Quote {
    Quote { is_multiline: true, ..quote(open) }
}

const fn raw_quote(open: &'static str) -> Quote {
    Quote { has_escapes: false, ..quote(open) }
}

const LITERAL: Quote = Quote { is_literal: true, ..quote("'") };

pub(super) struct Rules {
    pub(super) shape: Shape,
    pub(super) line_comments: &'static [&'static str],
    pub(super) block_comment: Option<(&'static str, &'static str)>,
    /// Longer ones first.
    pub(super) quotes: &'static [Quote],
    pub(super) keywords: &'static [&'static str],
    pub(super) is_case_ignored: bool,
    pub(super) constants: &'static [&'static str],
    /// Types and functions that are known.
    pub(super) names: &'static [&'static str],
    /// `name(` is a function.
    pub(super) has_calls: bool,
    /// Words in capitals are types.
    pub(super) has_types: bool,
}

impl Rules {
    pub(super) fn is_keyword(&self, word: &str) -> bool {
        match self.is_case_ignored {
            true => self.keywords.iter().any(|keyword| keyword.eq_ignore_ascii_case(word)),
            false => self.keywords.contains(&word),
        }
    }
}

impl Language {
    /// By the name after the fence of a block, such as `python` or `py`.
    pub(in super::super) fn from_name(name: &str) -> Option<Language> {
        let name = name.to_ascii_lowercase();
        Some(match &name[..] {
            "c" | "h" | "c++" | "cc" | "cpp" | "cxx" | "hpp" | "cu" | "cuda" => Language::C,
            "console" | "shell-session" | "sh-session" | "shellsession" | "terminal" => Language::Console,
            "docker" | "dockerfile" | "containerfile" => Language::Dockerfile,
            "go" | "golang" => Language::Go,
            "js" | "javascript" | "jsx" | "mjs" | "node" | "ts" | "tsx" | "typescript" => {
                Language::JavaScript
            }
            "j2" | "jinja" | "jinja2" | "django" => Language::Jinja,
            "json" | "json5" | "jsonc" | "jsonl" | "ndjson" | "ipynb" => Language::Json,
            "modelfile" => Language::Modelfile,
            "py" | "python" | "python3" | "py3" => Language::Python,
            "rs" | "rust" => Language::Rust,
            "bash" | "sh" | "shell" | "zsh" | "ksh" => Language::Shell,
            "cfg" | "ini" | "toml" => Language::Toml,
            "yaml" | "yml" => Language::Yaml,
            _ => return None,
        })
    }

    /// By the path of a file.
    pub(in super::super) fn from_path(path: &str) -> Option<Language> {
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
        match name.rsplit_once('.') {
            Some((_, extension)) => Language::from_name(extension),
            None if name.eq_ignore_ascii_case("kitfile") => Some(Language::Yaml),
            // A file without an extension may have any name: `go`, `node`.
            None => Language::from_name(name)
                .filter(|language| matches!(language, Language::Dockerfile | Language::Modelfile)),
        }
    }

    pub(super) fn rules(self) -> &'static Rules {
        match self {
            Language::C => &C,
            Language::Console => &CONSOLE,
            Language::Dockerfile => &DOCKERFILE,
            Language::Go => &GO,
            Language::JavaScript => &JAVASCRIPT,
            Language::Jinja => &JINJA,
            Language::Json => &JSON,
            Language::Modelfile => &MODELFILE,
            Language::Python => &PYTHON,
            Language::Rust => &RUST,
            Language::Shell => &SHELL,
            Language::Toml => &TOML,
            Language::Yaml => &YAML,
        }
    }
}

/// What most languages share.
const PLAIN: Rules = Rules {
    shape: Shape::Code,
    line_comments: &["//"],
    block_comment: Some(("/*", "*/")),
    quotes: &[quote("\""), quote("'")],
    keywords: &[],
    is_case_ignored: false,
    constants: &["true", "false", "null"],
    names: &[],
    has_calls: true,
    has_types: true,
};

static C: Rules = Rules {
    quotes: &[quote("\""), LITERAL],
    keywords: &[
        "alignas",
        "alignof",
        "auto",
        "break",
        "case",
        "catch",
        "class",
        "concept",
        "const",
        "consteval",
        "constexpr",
        "continue",
        "co_await",
        "co_return",
        "co_yield",
        "decltype",
        "default",
        "define",
        "delete",
        "do",
        "elif",
        "else",
        "endif",
        "enum",
        "explicit",
        "export",
        "extern",
        "for",
        "friend",
        "goto",
        "if",
        "ifdef",
        "ifndef",
        "include",
        "inline",
        "mutable",
        "namespace",
        "new",
        "noexcept",
        "operator",
        "override",
        "pragma",
        "private",
        "protected",
        "public",
        "register",
        "requires",
        "restrict",
        "return",
        "sizeof",
        "static",
        "static_assert",
        "struct",
        "switch",
        "template",
        "this",
        "throw",
        "try",
        "typedef",
        "typename",
        "union",
        "using",
        "virtual",
        "volatile",
        "while",
        "__device__",
        "__global__",
        "__host__",
        "__shared__",
    ],
    constants: &["true", "false", "NULL", "nullptr"],
    names: &[
        "bool", "char", "double", "float", "int", "int16_t", "int32_t", "int64_t", "int8_t", "long", "short",
        "signed", "size_t", "ssize_t", "uint16_t", "uint32_t", "uint64_t", "uint8_t", "unsigned", "void",
    ],
    has_types: false,
    ..PLAIN
};

static GO: Rules = Rules {
    quotes: &[quote("\""), LITERAL, Quote { is_multiline: true, ..raw_quote("`") }],
    keywords: &[
        "break",
        "case",
        "chan",
        "const",
        "continue",
        "default",
        "defer",
        "else",
        "fallthrough",
        "for",
        "func",
        "go",
        "goto",
        "if",
        "import",
        "interface",
        "map",
        "package",
        "range",
        "return",
        "select",
        "struct",
        "switch",
        "type",
        "var",
    ],
    constants: &["true", "false", "nil", "iota"],
    names: &[
        "any", "bool", "byte", "error", "float32", "float64", "int", "int16", "int32", "int64", "int8",
        "rune", "string", "uint", "uint16", "uint32", "uint64", "uint8", "uintptr",
    ],
    has_types: false,
    ..PLAIN
};

static JAVASCRIPT: Rules = Rules {
    quotes: &[quote("\""), quote("'"), long_quote("`")],
    keywords: &[
        "abstract",
        "as",
        "async",
        "await",
        "break",
        "case",
        "catch",
        "class",
        "const",
        "continue",
        "debugger",
        "declare",
        "default",
        "delete",
        "do",
        "else",
        "enum",
        "export",
        "extends",
        "finally",
        "for",
        "from",
        "function",
        "if",
        "implements",
        "import",
        "in",
        "instanceof",
        "interface",
        "keyof",
        "let",
        "namespace",
        "new",
        "of",
        "private",
        "protected",
        "public",
        "readonly",
        "return",
        "satisfies",
        "static",
        "super",
        "switch",
        "this",
        "throw",
        "try",
        "type",
        "typeof",
        "var",
        "void",
        "while",
        "with",
        "yield",
    ],
    constants: &["true", "false", "null", "undefined", "NaN", "Infinity"],
    names: &["any", "boolean", "never", "number", "string", "unknown"],
    ..PLAIN
};

static RUST: Rules = Rules {
    shape: Shape::Rust,
    quotes: &[long_quote("\""), LITERAL],
    keywords: &[
        "as", "async", "await", "break", "const", "continue", "crate", "dyn", "else", "enum", "extern", "fn",
        "for", "if", "impl", "in", "let", "loop", "match", "mod", "move", "mut", "pub", "ref", "return",
        "self", "static", "struct", "super", "trait", "type", "union", "unsafe", "use", "where", "while",
    ],
    constants: &["true", "false"],
    names: &[
        "bool", "char", "f32", "f64", "i128", "i16", "i32", "i64", "i8", "isize", "str", "u128", "u16",
        "u32", "u64", "u8", "usize",
    ],
    ..PLAIN
};

static PYTHON: Rules = Rules {
    line_comments: &["#"],
    block_comment: None,
    quotes: &[long_quote("\"\"\""), long_quote("'''"), quote("\""), quote("'")],
    keywords: &[
        "and", "as", "assert", "async", "await", "break", "case", "class", "continue", "def", "del", "elif",
        "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "match",
        "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
    ],
    constants: &["True", "False", "None", "NotImplemented", "Ellipsis"],
    names: &["bool", "bytes", "dict", "float", "int", "list", "object", "set", "str", "tuple", "self", "cls"],
    ..PLAIN
};

const SHELL: Rules = Rules {
    shape: Shape::Shell,
    line_comments: &["#"],
    block_comment: None,
    quotes: &[long_quote("\""), Quote { is_multiline: true, ..raw_quote("'") }],
    keywords: &[
        "alias", "break", "case", "cd", "continue", "declare", "do", "done", "echo", "elif", "else", "esac",
        "eval", "exec", "exit", "export", "fi", "for", "function", "if", "in", "local", "read", "readonly",
        "return", "select", "set", "shift", "source", "sudo", "then", "trap", "unset", "until", "while",
    ],
    constants: &["true", "false"],
    has_calls: false,
    has_types: false,
    ..PLAIN
};

static CONSOLE: Rules = Rules { shape: Shape::Console, ..SHELL };

const DOCKERFILE: Rules = Rules {
    shape: Shape::Instructions,
    keywords: &[
        "ADD",
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "HEALTHCHECK",
        "LABEL",
        "MAINTAINER",
        "ONBUILD",
        "RUN",
        "SHELL",
        "STOPSIGNAL",
        "USER",
        "VOLUME",
        "WORKDIR",
    ],
    is_case_ignored: true,
    quotes: &[quote("\""), raw_quote("'")],
    ..SHELL
};

static MODELFILE: Rules = Rules {
    keywords: &[
        "ADAPTER",
        "FROM",
        "LICENSE",
        "MESSAGE",
        "PARAMETER",
        "PARSER",
        "RENDERER",
        "REQUIRES",
        "SYSTEM",
        "TEMPLATE",
    ],
    quotes: &[Quote { is_multiline: true, ..raw_quote("\"\"\"") }, quote("\"")],
    ..DOCKERFILE
};

static JINJA: Rules = Rules {
    shape: Shape::Template,
    line_comments: &[],
    block_comment: Some(("{#", "#}")),
    keywords: &[
        "and",
        "block",
        "break",
        "call",
        "continue",
        "elif",
        "else",
        "endblock",
        "endcall",
        "endfilter",
        "endfor",
        "endgeneration",
        "endif",
        "endmacro",
        "endset",
        "extends",
        "filter",
        "for",
        "from",
        "generation",
        "if",
        "import",
        "in",
        "include",
        "is",
        "macro",
        "not",
        "or",
        "recursive",
        "set",
        "with",
        "endwith",
    ],
    constants: &["true", "false", "none", "True", "False", "None"],
    names: &["loop", "messages", "namespace", "tools", "add_generation_prompt", "bos_token", "eos_token"],
    has_types: false,
    ..PLAIN
};

static JSON: Rules =
    Rules { shape: Shape::Json, quotes: &[quote("\"")], has_calls: false, has_types: false, ..PLAIN };

static TOML: Rules = Rules {
    shape: Shape::Toml,
    line_comments: &["#", ";"],
    block_comment: None,
    quotes: &[long_quote("\"\"\""), long_quote("'''"), quote("\""), raw_quote("'")],
    has_calls: false,
    has_types: false,
    ..PLAIN
};

static YAML: Rules = Rules {
    shape: Shape::Yaml,
    line_comments: &["#"],
    block_comment: None,
    quotes: &[long_quote("\""), Quote { is_multiline: true, ..raw_quote("'") }],
    constants: &["true", "false", "null", "yes", "no", "on", "off"],
    has_calls: false,
    has_types: false,
    ..PLAIN
};
