//! `lode completions`: bash, zsh and fish complete names on a terminal, also after the colons at which bash splits
//! words, and the first time.

use std::process::Command;

use lode_tests::checkpoint::demo;
use lode_tests::clients::find_program;
use lode_tests::report::current_test;
use lode_tests::server::{Folder, Options, lode_bin};
use lode_tests::terminal::{Terminal, keys};

#[tokio::test]
async fn names_are_completed() {
    let server = Folder::new().start(Options::new()).await;
    let lode = server.lode();
    lode.create("team/mini:v1", &demo(), &[]).await.expect_success();
    lode.run(&["cp", "team/mini:v1", "team/mini:v22"]).await.expect_success();
    let home = server.folder().path();
    for (shell, place) in [
        ("bash", ".local/share/bash-completion/completions/lode"),
        ("zsh", ".zfunc/_lode"),
        ("fish", ".config/fish/completions/lode.fish"),
    ] {
        let path = home.join(place);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, lode.run(&["completions", shell]).await.expect_success().stdout).unwrap();
    }
    // Debian's bash reads completions without a setting only if its package bash-completion is installed.
    std::fs::write(home.join(".bashrc"), ". ~/.local/share/bash-completion/completions/lode\nPS1='> '\n")
        .unwrap();
    let zshrc = "fpath=(~/.zfunc $fpath)\nautoload -Uz compinit && compinit -u\nPS1='> '\n";
    std::fs::write(home.join(".zshrc"), zshrc).unwrap();
    std::fs::write(
        home.join(".config/fish/config.fish"),
        "set -g fish_autosuggestion_enabled 0\nfunction fish_prompt; echo -n '> '; end\n",
    )
    .unwrap();
    let program = lode_bin();
    let folders = [program.parent().unwrap().to_str().unwrap(), "/usr/bin", "/bin"].join(":");
    for shell in ["bash", "zsh", "fish"] {
        let Some(path) = find_program(&current_test(), "LODE_NO_SHELL", &[&format!("/usr/bin/{shell}")])
        else {
            continue;
        };
        let mut command = Command::new(path);
        command.arg("-i").env_clear().env("HOME", home).env("PATH", &folders).env("LODE_HOST", server.url());
        command.env("LANG", "C.UTF-8").current_dir(home);
        let mut terminal = Terminal::start(command, 40, 100);
        terminal.line(">").await;
        for (typed, completed) in [
            ("lode sho", "lode show"),
            ("lode show team/m", "lode show team/mini"),
            ("lode show team/mini:v2", "lode show team/mini:v22"),
            ("lode --host HOST tag list te", "lode --host HOST tag list team/mini"),
            ("lode run --think=l", "lode run --think=low"),
        ] {
            let with_host = |text: &str| text.replace("HOST", &server.url());
            terminal.press(&with_host(typed));
            terminal.line(&format!("> {}", with_host(typed))).await;
            terminal.press(keys::TAB);
            terminal.line(&format!("> {}", with_host(completed))).await;
            // Not an interrupt: zsh loses one that comes while it still completes.
            terminal.press(keys::CTRL_U);
            terminal.line(">").await;
        }
    }
}
