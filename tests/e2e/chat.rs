//! `lode run` on a pseudo-terminal: the line editor, the commands of a chat, Ctrl-C, reasoning; and without a
//! terminal, where it writes no escape codes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use lode_tests::checkpoint::demo;
use lode_tests::command::Lode;
use lode_tests::server::{Folder, Options, Server, lode_command};
use lode_tests::terminal::{Terminal, keys};
use serde_json::{Value, json};

const ROWS: u16 = 60;
const COLUMNS: u16 = 100;
/// Requires a response that is far longer than a test takes.
const ENDLESS: &str = r#"{"type":"object","properties":{"texts":
    {"type":"array","items":{"type":"string","minLength":20},"minItems":100000}},"required":["texts"]}"#;

/// Starts a server with a worker and the demo model as `team/demo`.
async fn with_model() -> Server {
    with_model_and(Options::new()).await
}

async fn with_model_and(options: Options) -> Server {
    let server = Folder::new().start(options.worker().env("LODE_KV_CACHE_TYPE", "f32")).await;
    server.lode().create("team/demo", &demo(), &[]).await.expect_success();
    server
}

fn command(lode: &Lode, more: &[&str]) -> Command {
    lode.command(&[&["run", "team/demo", "--temperature", "0", "--num-predict", "20"], more].concat())
}

/// Starts a chat and waits for its first prompt.
async fn chat(server: &Server) -> Terminal {
    let mut terminal = Terminal::start(command(&server.lode(), &[]), ROWS, COLUMNS);
    terminal.prompt().await;
    terminal
}

/// The messages that `/save` stored with a model, as `role: text`.
async fn saved_messages(server: &Server, name: &str) -> Vec<String> {
    let shown = server.registry().post_json("/api/show", &json!({ "model": name })).await.expect(200).json();
    let messages = shown["messages"].as_array().cloned().unwrap_or_default();
    let text = |message: &Value, key: &str| message[key].as_str().unwrap_or_default().to_owned();
    messages
        .iter()
        .map(|message| format!("{}: {}", text(message, "role"), text(message, "content")))
        .collect()
}

#[tokio::test]
async fn lines_are_edited_and_kept_for_other_chats() {
    let server = with_model().await;
    let (mut one, mut two) = (chat(&server).await, chat(&server).await);
    one.press("What is 40 plus 4?");
    one.press(keys::LEFT);
    let screen = one.enter("1").await;
    assert!(screen.contains(">>> What is 40 plus 41?\n81.\n"), "{screen}");
    two.enter("/set think low").await;
    one.press(keys::CTRL_D);
    assert!(one.end().await.success());
    two.enter("/set think high").await;

    // The history has the lines of both chats, in the order of time.
    let mut three = chat(&server).await;
    for line in ["/set think high", "/set think low", "What is 40 plus 41?"] {
        three.press(keys::UP);
        three.line(&format!(">>> {line}")).await;
    }
    let history = server.folder().path().join(".local/state/lode/history");
    assert_eq!(std::fs::metadata(&history).unwrap().permissions().mode() & 0o777, 0o600);

    // A chat may leave no trace.
    three.press(keys::CTRL_C);
    three.prompt().await;
    three.enter("/set history off").await;
    three.enter("/set think medium").await;
    assert!(!std::fs::read_to_string(&history).unwrap().contains("medium"));
}

#[tokio::test]
async fn messages_may_have_several_lines() {
    let server = with_model().await;
    let mut terminal = chat(&server).await;
    terminal.press("\"\"\"What is\r40 plus 41?\r");
    terminal.enter("\"\"\"").await;
    // Pasted text is one message, whatever it contains.
    terminal.press(&format!("{}What is 5\rplus 5?\x1b[2J{}", keys::PASTE_START, keys::PASTE_END));
    terminal.text("plus 5?").await;
    terminal.enter("").await;
    terminal.enter("/set system \"\"\"Be\rbrief.\"\"\"").await;
    let screen = terminal.enter("/show system").await;
    assert!(screen.contains("\nBe\nbrief.\n"), "{screen}");
    let screen = terminal.enter("/save team/talk").await;
    assert!(screen.contains("saved as team/talk:latest sha256:"), "{screen}");
    let messages = saved_messages(&server, "team/talk").await;
    assert_eq!(messages.len(), 4, "{messages:?}");
    assert_eq!((&*messages[0], &*messages[2]), ("user: What is\n40 plus 41?", "user: What is 5\nplus 5?"));
    let long = "water ".repeat(2000);
    terminal.press(&format!("{}{long}{}", keys::PASTE_START, keys::PASTE_END));
    terminal.text("water water").await;
    terminal.press(keys::CTRL_C);
    terminal.prompt().await;
}

#[tokio::test]
async fn ctrl_c_stops_the_response_and_not_the_chat() {
    // Slow, so that the response is still being generated.
    let server = with_model_and(Options::new().env("LODE_CPU", "scalar")).await;
    let schema = server.folder().path().join("endless.json");
    std::fs::write(&schema, ENDLESS).unwrap();
    let mut terminal = chat(&server).await;
    terminal.enter("/set parameter num_predict -1").await;
    terminal.enter("/set format endless.json").await;
    terminal.press("Define water.\r");
    terminal.written("\"texts\"").await;
    terminal.press(keys::CTRL_C);
    terminal.prompt().await;
    terminal.enter("/set format none").await;
    let screen = terminal.enter("What is 40 plus 41?").await;
    assert!(screen.contains("81."), "{screen}");
    // The response is part of the conversation as far as it came.
    terminal.enter("/save team/stopped").await;
    let messages = saved_messages(&server, "team/stopped").await;
    assert_eq!((messages.len(), &*messages[0]), (4, "user: Define water."), "{messages:?}");
    assert!(messages[1].starts_with("assistant: {"), "{messages:?}");

    // At the prompt it clears the line.
    terminal.press("forget this");
    terminal.line(">>> forget this").await;
    terminal.press(keys::CTRL_C);
    let screen = terminal.prompt().await;
    assert!(screen.contains("/bye or Ctrl-D ends the chat"), "{screen}");
    terminal.press(keys::CTRL_D);
    assert_eq!(terminal.end().await.code(), Some(0));

    // A single prompt ends with the code that shells use for Ctrl-C.
    let more = ["Define", "water.", "--format", "endless.json", "--num-predict", "100000"];
    let lode = server.lode();
    let once = lode.command(&[&["run", "team/demo"], &more[..]].concat());
    let mut terminal = Terminal::start(once, ROWS, COLUMNS);
    terminal.written("\"texts\"").await;
    terminal.press(keys::CTRL_C);
    assert_eq!(terminal.end().await.code(), Some(130));
}

#[tokio::test]
async fn the_line_follows_the_size_of_the_window() {
    let server = with_model().await;
    let mut terminal = chat(&server).await;
    let word = "0123456789";
    terminal.press(&word.repeat(7));
    terminal.line(&format!(">>> {}", word.repeat(7))).await;
    terminal.resize(ROWS, 44);
    // At 44 columns the line has two rows: the prompt and 40 digits, then 30 digits.
    terminal.line(&word.repeat(3)).await;
    terminal.press("abc");
    let screen = terminal.line(&format!("{}abc", word.repeat(3))).await;
    assert!(screen.contains(&format!(">>> {}", word.repeat(4))), "{screen}");
    terminal.press(keys::CTRL_C);
    terminal.prompt().await;
    let screen = terminal.enter("/set verbose").await;
    assert!(screen.contains("verbose is on"), "{screen}");
}

#[tokio::test]
async fn commands_change_show_and_save() {
    let server = with_model().await;
    let mut terminal = chat(&server).await;
    // Mistakes name the next step, and Tab completes.
    let screen = terminal.enter("/sett").await;
    assert!(
        screen.contains("unknown command `/sett`") && screen.contains("did you mean `/set`?"),
        "{screen}"
    );
    let screen = terminal.enter("/set parameter temperature warm").await;
    assert!(screen.contains("'temperature' is `warm`, expected a number"), "{screen}");
    terminal.press(&format!("/set par{} temp{}", keys::TAB, keys::TAB));
    terminal.line(">>> /set parameter temperature").await;
    terminal.enter(" 0").await;
    terminal.enter("/set parameter stop plus \"a b\"").await;
    let screen = terminal.enter("/show").await;
    for line in [
        "team/demo:latest\n",
        "architecture  llama\n",
        "temperature   0.0\n",
        "stop          [\"plus\",\"a b\"]\n",
    ] {
        assert!(screen.contains(line), "{line}: {screen}");
    }
    let screen = terminal.enter("/show parameters").await;
    assert!(screen.contains("the model has no parameters"), "{screen}");
    let screen = terminal.enter("/help").await;
    assert!(screen.contains("/load MODEL") && screen.contains("Ctrl-C"), "{screen}");

    // A saved conversation continues, in a chat of its own.
    terminal.enter("/set system Add numbers.").await;
    terminal.enter("What is 40 plus 41?").await;
    terminal.enter("/clear").await;
    terminal.enter("What is 5 plus 5?").await;
    terminal.enter("/save team/sums").await;
    assert_eq!(saved_messages(&server, "team/sums").await, ["user: What is 5 plus 5?", "assistant: 10."]);
    let screen = terminal.enter("/load team/absent").await;
    assert!(screen.contains("model `team/absent:latest` not found"), "{screen}");
    let screen = terminal.enter("/load team/dem").await;
    assert!(screen.contains("did you mean `team/demo`?"), "{screen}");
    let screen = terminal.enter("/load team/sums").await;
    assert!(screen.contains("chatting with team/sums:latest\n>>> What is 5 plus 5?\n10.\n"), "{screen}");
    let screen = terminal.enter("/show system").await;
    assert!(screen.trim_end().ends_with("Add numbers.\n>>>"), "{screen}");
    // Saved under its own name, the model contains the conversation once.
    terminal.enter("What is 40 plus 41?").await;
    for saves in 1..=2 {
        let screen = terminal.enter("/save team/sums").await;
        assert_eq!(saved_messages(&server, "team/sums").await.len(), 4);
        let replaced = screen.matches("(`lode tag undo team/sums:latest` restores it)\n").count();
        assert_eq!(replaced, saves, "{screen}");
    }
    terminal.press("/bye\r");
    assert_eq!(terminal.end().await.code(), Some(0));
}

#[tokio::test]
async fn an_error_does_not_end_the_chat() {
    let server = with_model().await;
    let mut terminal = chat(&server).await;
    let screen = terminal.enter("/set format absent.json").await;
    assert!(screen.contains("error: cannot read the format absent.json"), "{screen}");
    let screen = terminal.enter("/set think high").await;
    assert!(screen.contains("error: team/demo:latest does not support reasoning"), "{screen}");
    let screen = terminal.enter("/set parameter temperature none").await;
    assert!(screen.contains("temperature is the model's own"), "{screen}");
    let screen = terminal.enter("What is 40 plus 41?").await;
    assert!(!screen.contains("does not support thinking"), "{screen}");
    terminal.enter("/set nothink").await;
    let _folder = server.folder().clone(); // with the history
    server.kill();
    let screen = terminal.enter("What is 5 plus 5?").await;
    assert!(
        screen.contains("error: cannot connect to") && screen.contains("is a server running"),
        "{screen}"
    );
    terminal.press("/quit\r");
    assert_eq!(terminal.end().await.code(), Some(0));
}

#[tokio::test]
async fn without_a_terminal_there_are_no_escape_codes() {
    let server = with_model().await;
    let lode = server.lode();
    fn run<'a>(words: &[&'a str]) -> Vec<&'a str> {
        [&["run", "team/demo", "--temperature", "0"], words].concat()
    }
    let output = lode.run(&run(&["What", "is", "40", "plus", "41?"])).await.expect_success();
    assert_eq!((&*output.stdout, &*output.stderr), ("81.\n", ""));
    let output = lode.run_with_input(&run(&["plus", "41?"]), b"What is 40").await.expect_success();
    assert_eq!((&*output.stdout, &*output.stderr), ("81.\n", ""));
    lode.run_with_input(&run(&[]), b"").await.expect_failure(&["no prompt: standard input is empty"]);
    let output = lode.run_with_input(&run(&[]), b"What is 40 plus 41?").await.expect_success();
    assert_eq!((&*output.stdout, &*output.stderr), ("81.\n", ""));
    let output = lode.run(&run(&["--raw", "--num-predict", "5", "-v", "Water"])).await.expect_success();
    assert!(output.stderr.contains("generated 5 tokens") && !output.stderr.contains('\x1b'), "{output:?}");

    // With a keyboard and a pipe, the pipe gets the text.
    let mut piped = command(&lode, &[]);
    let path = server.folder().path().join("piped");
    piped.stdout(std::fs::File::create(&path).unwrap()).stderr(Stdio::null()).env("TERM", "xterm");
    let mut terminal = Terminal::start_with_input(piped, ROWS, COLUMNS);
    terminal.prompt().await;
    terminal.enter("What is 40 plus 41?").await;
    terminal.press(keys::CTRL_D);
    assert!(terminal.end().await.success());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "81.\n");

    // A terminal that has no escape codes.
    let mut plain = Terminal::start_dumb(command(&lode, &[]), ROWS, COLUMNS);
    plain.line(">>>").await;
    plain.press("What is 40 plus 41?\r");
    plain.text("81.").await;
    plain.press(keys::CTRL_D);
    assert!(plain.end().await.success());
    assert!(!plain.bytes().contains('\x1b'), "{}", plain.bytes().escape_debug());
}

#[tokio::test]
async fn reasoning_is_dimmed_and_control_characters_are_escaped() {
    let server = reasoning_server();
    let folder = Folder::new();
    let lode = |more: &[&str]| {
        let mut command = lode_command(folder.path());
        command.args(["run", "fake", "Why?", "--think=high"]).args(more).env("LODE_HOST", &server);
        command
    };
    let mut terminal = Terminal::start(lode(&[]), ROWS, COLUMNS);
    assert!(terminal.end().await.success());
    terminal.text("of it.").await;
    let bytes = terminal.bytes();
    assert!(
        bytes.contains("\x1b[2mLet me think\\u{1b}[31m.\x1b[0m\r\n\r\nBecause\\u{1b}[2J\tof it.\r\n"),
        "{bytes}"
    );

    let mut terminal = Terminal::start(lode(&["--hide-thinking"]), ROWS, COLUMNS);
    assert!(terminal.end().await.success());
    assert!(!terminal.text("of it.").await.contains("Let me"));

    let mut terminal = Terminal::start_plain(lode(&[]), ROWS, COLUMNS);
    assert!(terminal.end().await.success());
    let screen = terminal.text("of it.").await;
    assert!(
        screen.starts_with("reasoning:\nLet me") && screen.contains("\n\nresponse:\nBecause"),
        "{screen}"
    );
    assert!(!terminal.bytes().contains('\x1b'), "{}", terminal.bytes().escape_debug());

    // A pipe gets the exact text, without the reasoning.
    let output = lode(&[]).output().unwrap();
    assert!(output.status.success());
    assert_eq!((&*output.stdout, &*output.stderr), (&b"Because\x1b[2J\tof it.\n"[..], &b""[..]));
}

/// A server with a model that reasons, and that tries to steer the terminal. Ends with the tests.
fn reasoning_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(respond));
    format!("http://{address}")
}

fn respond(mut connection: TcpStream) {
    let mut reader = BufReader::new(connection.try_clone().unwrap());
    let mut length = 0;
    for line in reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()) {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let request: Value = serde_json::from_slice(&body).unwrap();
    let records = match request["think"] == "high" {
        true => vec![
            json!({"thinking": "Let me "}),
            json!({"thinking": "think\u{1b}[31m."}),
            json!({"response": "Because\u{1b}[2J"}),
            json!({"response": "\tof it.", "done": true}),
        ],
        false => vec![json!({"error": "expected the field `think`"})],
    };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n";
    connection.write_all(head.as_bytes()).unwrap();
    for record in records {
        connection.write_all(format!("{record}\n").as_bytes()).unwrap();
    }
}
