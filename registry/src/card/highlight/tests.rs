use super::{Highlighter, Language, MAX_BYTES, MAX_MARKS, escape};

/// A name of each language.
const NAMES: [&str; 13] = [
    "c",
    "console",
    "dockerfile",
    "go",
    "js",
    "jinja",
    "json",
    "modelfile",
    "py",
    "rs",
    "sh",
    "toml",
    "yaml",
];

fn highlight(name: &str, text: &str) -> Option<String> {
    Highlighter::default().highlight(Language::from_name(name)?, text)
}

/// Writes each mark as `<class:text>`.
fn marks(name: &str, text: &str) -> String {
    let html = highlight(name, text).unwrap_or_else(|| text.to_owned());
    html.replace("<span class=\"hl-", "<")
        .replace("\">", ":")
        .replace("</span>", ">")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&amp;", "&")
}

#[test]
fn languages_of_cards_have_colours() {
    for (language, text, expect) in [
        (
            "python",
            "from x import y  # why\ndef f(a: int = 0.5): return \"\"\"a\n# b\"\"\" or None",
            "<keyword:from> x <keyword:import> y  <comment:# why>\n<keyword:def> <name:f>(a: <name:int> = <constant:0.5>): <keyword:return> <string:\"\"\"a\n# b\"\"\"> <keyword:or> <constant:None>",
        ),
        (
            "bash",
            "if [ -n \"$A\" ]; then vllm serve org/m-7b --port 80 # x\necho don't#y ${B:-c} $D",
            "<keyword:if> [ -n <string:\"$A\"> ]; <keyword:then> vllm serve org/m-7b --port <constant:80> <comment:# x>\n<keyword:echo> don't#y <name:${B:-c}> <name:$D>",
        ),
        (
            "console",
            "$ echo 'a' \\\n  7\nan if 'b\nuser@host:~$ cd x",
            "$ <keyword:echo> <string:'a'> \\\n  <constant:7>\nan if 'b\nuser@host:~$ <keyword:cd> x",
        ),
        (
            "json",
            "{\"a\": [\"b\", -1e-5, true]}",
            "{<name:\"a\">: [<string:\"b\">, -<constant:1e-5>, <constant:true>]}",
        ),
        (
            "yaml",
            "- a: 1 # x\n  b-c: don't\nurl: http://h/#y\nlist:\n",
            "- <name:a>: <constant:1> <comment:# x>\n  <name:b-c>: don't\n<name:url>: http://h/#y\n<name:list>:\n",
        ),
        (
            "toml",
            "[a.b]\nc = \"d\" # e\nf = '''\ng=1'''",
            "<name:[a.b]>\n<name:c> = <string:\"d\"> <comment:# e>\n<name:f> = <string:'''\ng=1'''>",
        ),
        (
            "rust",
            "fn f<'a>(x: &'a str) -> Vec<u8> { r#\"a\"b\"#; 'c'; '\\u{1f600}'; 0..10 } // d",
            "<keyword:fn> f<'a>(x: &'a <name:str>) -> <name:Vec><<name:u8>> { <string:r#\"a\"b\"#>; <string:'c'>; <string:'\\u{1f600}'>; <constant:0>..<constant:10> } <comment:// d>",
        ),
        (
            "typescript",
            "const a: string = `b\n${c}`; /* d\n e */ new Map()",
            "<keyword:const> a: <name:string> = <string:`b\n${c}`>; <comment:/* d\n e */> <keyword:new> <name:Map>()",
        ),
        (
            "dockerfile",
            "FROM python:3 AS base\nrun pip install \"from\" $X",
            "<keyword:FROM> python:<constant:3> AS base\n<keyword:run> pip install <string:\"from\"> <name:$X>",
        ),
        (
            "modelfile",
            "FROM mini\nSYSTEM \"\"\"You\nFROM it\"\"\"",
            "<keyword:FROM> mini\n<keyword:SYSTEM> <string:\"\"\"You\nFROM it\"\"\">",
        ),
        (
            "go",
            "func f() error { return nil }",
            "<keyword:func> <name:f>() <name:error> { <keyword:return> <constant:nil> }",
        ),
        (
            "c++",
            "#include <a.h>\nint main() { return 'x' + 0x1F; }",
            "#<keyword:include> <a.h>\n<name:int> <name:main>() { <keyword:return> <string:'x'> + <constant:0x1F>; }",
        ),
        (
            "jinja",
            "if {% if x == 'a' %}b{{ c|trim }}{# d #} for {",
            "if <keyword:{%> <keyword:if> x == <string:'a'> <keyword:%}>b<keyword:{{> c|trim <keyword:}}><comment:{# d #}> for {",
        ),
    ] {
        assert_eq!(marks(language, text), expect, "{language}");
    }
}

#[test]
fn unknown_languages_stay_plain() {
    for name in ["", "text", "brainfuck", "html", "python<b>"] {
        assert_eq!(highlight(name, "if x: return 1"), None, "{name}");
    }
    assert_eq!(highlight("python", "x"), None);
    assert_eq!(Language::from_path("a/config.json"), Some(Language::Json));
    assert_eq!(Language::from_path("chat_template.jinja"), Some(Language::Jinja));
    assert_eq!(Language::from_path("Modelfile"), Some(Language::Modelfile));
    assert_eq!(Language::from_path("python/LICENSE"), None);
    assert_eq!(Language::from_path("go"), None);
}

#[test]
fn the_text_is_that_of_the_source() {
    let text = "<b> & \"x\" \u{0} 'é' /* unclosed `${ {{ {% 1..2 $ \\";
    for name in NAMES {
        for begin in 0..text.len() {
            let Some(part) = text.get(begin..) else { continue };
            let html = highlight(name, part).unwrap_or_default();
            let shown: String =
                html.split('<').map(|rest| rest.split_once('>').map_or(rest, |(_, text)| text)).collect();
            let mut expect = String::new();
            escape(part, &mut expect);
            assert!(html.is_empty() || shown == expect, "{name} {html}");
        }
    }
}

#[test]
fn marks_and_text_are_limited() {
    let mut highlighter = Highlighter::default();
    let language = Language::from_name("python").unwrap();
    let many = "1,".repeat(2 * MAX_MARKS);
    let html = highlighter.highlight(language, &many).unwrap();
    assert_eq!(html.matches("<span").count(), MAX_MARKS);
    assert!(html.ends_with("1,1,"));
    assert_eq!(highlighter.highlight(language, "1"), None, "the limit is for all blocks of a page");
    assert_eq!(highlight("python", &"#".repeat(MAX_BYTES + 1)), None);
}

/// A deadline would depend on the machine: superlinear work here would take hours.
#[test]
fn work_is_linear() {
    for name in NAMES {
        for unit in [
            "${", "- ", "1..", "{%", "{{", "r#\"", "'", "/*", "a: ", "[", "$ a\\\n", "1e+", "a  ", "\"\\",
            "é",
        ] {
            let text = unit.repeat(32 * 1024 / unit.len());
            let html = highlight(name, &text).unwrap_or_default();
            assert!(html.len() <= 6 * text.len() + 40 * MAX_MARKS, "{name} {unit}");
        }
    }
}

/// At the largest size: at 32 KiB, reading these runs again at each step takes seconds only.
#[test]
fn runs_of_digits_are_read_once() {
    for name in NAMES {
        for unit in ["1.", "1e+", "1-", "1:", "1.1/"] {
            // The beginning makes the rest a command of a console and a tag of a template.
            let begin = "$ {{ ";
            let text = format!("{begin}{}/", unit.repeat((MAX_BYTES - begin.len() - 1) / unit.len()));
            let html = highlight(name, &text).unwrap_or_default();
            assert!(html.len() <= 6 * text.len() + 40 * MAX_MARKS, "{name} {unit}");
        }
    }
}

#[test]
fn words_that_begin_with_digits_have_no_colour() {
    for text in ["1.2.3/x", "1.1.", "7b-chat", "7b-chat-2", "1e+/", "a 1-b c"] {
        for name in ["sh", "dockerfile", "modelfile"] {
            assert_eq!(marks(name, text), text, "{name}");
        }
    }
    assert_eq!(marks("sh", "f 8080:80 0.5"), "f 8080:<constant:80> <constant:0.5>");
}
