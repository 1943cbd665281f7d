//! Servers with accounts, and the credentials of tests.

use crate::command::Lode;
use crate::server::{Folder, Options, Server};

/// The password of every account of the tests.
pub const PASSWORD: &str = "a long password";

/// Starts a server with the administrator `admin`, to whom the folder's home belongs.
pub async fn start_closed(options: Options) -> Server {
    let server = Folder::new().start(options.env("LODE_ADMIN_PASSWORD", PASSWORD)).await;
    log_in(&server.lode(), "admin").await;
    server
}

/// Starts a server with alice, who owns `alice/*`, and bob, who may read it.
pub async fn start_team(options: Options) -> Server {
    let server = start_closed(options).await;
    let admin = server.lode();
    for name in ["alice", "bob"] {
        add_user(&admin, name).await;
    }
    admin.run(&["grant", "add", "bob", "read", "alice/*"]).await.expect_success();
    server
}

/// Saves an account's credentials in the home of the command.
pub async fn log_in(lode: &Lode, name: &str) {
    lode.run_with_input(&["login", "--username", name, "--password-stdin"], PASSWORD.as_bytes())
        .await
        .expect_success();
}

/// Creates a user.
pub async fn add_user(admin: &Lode, name: &str) {
    admin
        .run_with_input(&["user", "add", name, "--password-stdin"], PASSWORD.as_bytes())
        .await
        .expect_success();
}

/// Creates a token with more arguments; returns its secret.
pub async fn create_token(lode: &Lode, args: &[&str]) -> String {
    let created = lode.run(&[&["token", "create"], args].concat()).await.expect_success();
    created.stdout.trim().to_owned()
}

/// Lets everyone read a repository, without credentials.
pub async fn make_public(server: &Server, repository: &str) {
    server.lode().run(&["visibility", repository, "public"]).await.expect_success();
}
