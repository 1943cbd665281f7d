//! The meaning of Modelfiles, the positions of errors, and that printing and parsing are inverse.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn text(text: &str) -> Text {
    Text::new(text).unwrap()
}

fn check(input: &str, expect: &[Command]) {
    assert_eq!(Modelfile::parse_settings(input.as_bytes()).unwrap().commands, expect, "{input:?}");
}

#[test]
fn every_instruction() {
    check(
        "# made by hand\nFROM team/mini:8b\r\nadapter ./lora\n\n  TEMPLATE \"\"\"{{ .System }}\n{{ .Prompt }}\"\"\"  \nSystem Be brief. \n\
         PARAMETER stop \"<end>\"\nPARAMETER temperature 0.5\nMESSAGE user \"\"\"hi\"\"\"\nLICENSE \"a\nb\"\n\
         RENDERER qwen3-coder\rPARSER qwen3\nREQUIRES v0.19.0\nDRAFT ./small",
        &[
            Command::From(text("team/mini:8b")),
            Command::Adapter(text("./lora")),
            Command::Template(text("{{ .System }}\n{{ .Prompt }}")),
            Command::System(text("Be brief.")),
            Command::Parameter { name: "stop".into(), value: text("<end>") },
            Command::Parameter { name: "temperature".into(), value: text("0.5") },
            Command::Message { role: Role::User, text: text("hi") },
            Command::License(text("a\nb")),
            Command::Renderer(text("qwen3-coder")),
            Command::Parser(text("qwen3")),
            Command::Requires(text("v0.19.0")),
            Command::Draft(text("./small")),
        ],
    );
}

#[test]
fn quotes_have_no_escapes() {
    let system = |value: &str| [Command::System(text(value))];
    check("SYSTEM \"\"", &system(""));
    check("SYSTEM \"\"\"\"\"\"", &system(""));
    check("SYSTEM \"\"\"say \"hi\" \"\"\"", &system("say \"hi\" "));
    check("SYSTEM \"\"\"\"quoted\"\"\"\"", &system("\"quoted\""));
    check("SYSTEM \"one\\\"", &system("one\\"));
    check("SYSTEM \"a\n  \nb\"  \n", &system("a\n  \nb"));
    check("SYSTEM # no comment", &system("# no comment"));
    check("SYSTEM 'single'", &system("'single'"));
    check("SYSTEM be\u{7} brief", &system("be brief"));
}

#[test]
fn encodings() {
    let wide = |read: fn(u16) -> [u8; 2]| "\u{feff}FROM ä".encode_utf16().flat_map(read).collect::<Vec<_>>();
    for bytes in [
        "FROM ä".as_bytes().to_vec(),
        "\u{feff}FROM ä".as_bytes().to_vec(),
        wide(u16::to_le_bytes),
        wide(u16::to_be_bytes),
    ] {
        assert_eq!(Modelfile::parse(&bytes).unwrap().sources().collect::<Vec<_>>(), ["ä"]);
    }
    let at = |bytes: &[u8]| {
        let error = Modelfile::parse(bytes).unwrap_err();
        assert_eq!(error.problem, Problem::Encoding);
        (error.line, error.column)
    };
    assert_eq!(at(b"FROM a\nSYSTEM \xff"), (2, 8));
    assert_eq!(at(b"\xff\xfeF\0R"), (1, 1));
}

#[test]
fn errors_have_positions() {
    let check = |input: &str, line: usize, column: usize, part: &str| {
        let error = Modelfile::parse(input.as_bytes()).unwrap_err();
        assert_eq!((error.line, error.column), (line, column), "{input:?}: {error}");
        let message = error.to_string();
        assert!(
            message.contains(part) && message.starts_with(&format!("line {line}, column {column}: ")),
            "{message}"
        );
    };
    check("FROM a\nFRUM b", 2, 1, "`FRUM` is not an instruction");
    check("FROM a\r\n\r\n  RUN x", 3, 3, "must be one of FROM");
    check("FROM a\nSYSTEM \"\"\"never\nends", 2, 8, "unexpected end of file");
    check("FROM a\nSYSTEM \"", 2, 8, "not closed");
    check("FROM a\nSYSTEM\nhello", 2, 7, "SYSTEM has no value");
    check("FROM", 1, 5, "FROM has no value");
    check("FROM \"\"", 1, 6, "FROM has no value");
    check("FROM a\nPARAMETER temprature 1", 2, 11, "unknown parameter 'temprature'");
    check("FROM a\nPARAMETER temperature warm", 2, 23, "expected a number");
    check("FROM a\nPARAMETER top_k 1.5", 2, 17, "expected an integer");
    check("FROM a\nPARAMETER use_mmap yes", 2, 20, "true or false");
    check("FROM a\nPARAMETER temperature NaN", 2, 23, "expected a number");
    check("FROM a\nPARAMETER", 2, 10, "PARAMETER has no value");
    check("FROM a\nMESSAGE tool hi", 2, 9, "`tool` is not a role");
    check("FROM a\nMESSAGE user", 2, 13, "MESSAGE has no value");
    check("FROM ä\nREQUIRES new", 2, 10, "`new` is not a version");
    check("SYSTEM hi\n", 1, 1, "no FROM");
    check("", 1, 1, "no FROM");
}

#[test]
fn options_gather() {
    let modelfile = Modelfile::parse(
        b"FROM a\nPARAMETER stop a\nPARAMETER temperature 1\nPARAMETER stop \"b \"\nPARAMETER temperature 0.7\n\
          PARAMETER num_ctx 4096\nPARAMETER use_mmap true\nPARAMETER mirostat 1\n",
    )
    .unwrap();
    assert_eq!(
        Value::Object(modelfile.parameters()),
        serde_json::json!({"stop": ["a", "b "], "temperature": 0.7, "num_ctx": 4096, "use_mmap": true})
    );
    assert_eq!(modelfile.deprecated().collect::<Vec<_>>(), ["mirostat"]);
}

#[test]
fn values_of_json_are_checked() {
    use serde_json::json;
    for (name, value, fits) in [
        ("top_k", json!(4), true),
        ("top_k", json!(4.0), true),
        ("top_k", json!(4.5), false),
        ("top_k", json!("4"), false),
        ("stop", json!(["a"]), true),
        ("stop", json!("a"), true),
        ("stop", json!([1]), false),
        ("use_mmap", json!(1), false),
        ("temperature", json!(null), true),
        ("of_tomorrow", json!({}), true),
    ] {
        assert_eq!(check_value(name, &value).is_ok(), fits, "{name} {value}");
    }
}

#[test]
fn some_texts_cannot_be_quoted() {
    assert!(Text::new("a\"\"\"\nb").is_err());
    assert!(Text::new("a\"\"\"  \nb").is_err());
    assert!(Text::new("a\u{0}b").is_err());
    assert!(Text::new("a\"\"\"").is_ok());
    assert!(Text::new("").is_ok());
}

fn any_text() -> impl Strategy<Value = Text> {
    let pieces = prop_oneof![
        Just("\"".to_owned()),
        Just("\"\"\"".to_owned()),
        Just("\n".to_owned()),
        Just("\r\n".to_owned()),
        Just(" ".to_owned()),
        Just("\t".to_owned()),
        Just("#".to_owned()),
        Just("FROM x".to_owned()),
        "[a-z{}.ä\u{2028}\u{a0}]{0,6}",
        any::<String>(),
    ];
    proptest::collection::vec(pieces, 0..8)
        .prop_filter_map("it cannot be written", |pieces| Text::new(pieces.concat()).ok())
}

fn any_name() -> impl Strategy<Value = Text> {
    any_text().prop_filter("it is empty", |text| !text.as_str().trim().is_empty())
}

fn any_command() -> impl Strategy<Value = Command> {
    let role = prop_oneof![Just(Role::System), Just(Role::User), Just(Role::Assistant)];
    prop_oneof![
        any_name().prop_map(Command::From),
        any_name().prop_map(Command::Adapter),
        any_name().prop_map(Command::Draft),
        any_text().prop_map(Command::Template),
        any_text().prop_map(Command::System),
        any_text().prop_map(Command::License),
        any_text().prop_map(|value| Command::Parameter { name: "stop".into(), value }),
        any::<f32>()
            .prop_filter("not a number", |x| x.is_finite())
            .prop_map(|x| Command::Parameter { name: "temperature".into(), value: text(&x.to_string()) }),
        any::<i64>().prop_map(|n| Command::Parameter { name: "seed".into(), value: text(&n.to_string()) }),
        (role, any_text()).prop_map(|(role, text)| Command::Message { role, text }),
        any_name().prop_map(Command::Renderer),
        any_name().prop_map(Command::Parser),
        "v?[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}(-rc[0-9])?".prop_map(|v| Command::Requires(text(&v))),
    ]
}

proptest! {
    #[test]
    fn parsing_undoes_printing(commands in proptest::collection::vec(any_command(), 0..8)) {
        let modelfile = Modelfile { commands };
        let printed = modelfile.to_string();
        prop_assert_eq!(Modelfile::parse_settings(printed.as_bytes()).unwrap(), modelfile, "{}", printed);
    }

    #[test]
    fn parsing_never_panics(bytes: Vec<u8>) {
        let _ = Modelfile::parse(&bytes);
    }

    #[test]
    fn parsed_files_print_and_parse_alike(text in "(FROM|SYSTEM|PARAMETER stop|MESSAGE user|LICENSE)? ?(\"\"\"|\")?[ -~\n\r]{0,30}(\"\"\"|\")?\n?") {
        if let Ok(modelfile) = Modelfile::parse_settings(text.as_bytes()) {
            let printed = modelfile.to_string();
            prop_assert_eq!(Modelfile::parse_settings(printed.as_bytes()), Ok(modelfile), "{}", printed);
        }
    }
}
