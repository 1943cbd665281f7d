//! Accounts on a read-only server.

use super::App;
use super::access::{PASSWORD, basic, closed};
use crate::Config;

#[tokio::test]
async fn a_read_only_server_slows_down_guessing() {
    let app = closed().await;
    app.user("alice").await;
    let app = App::with_data(Config { read_only: true, ..Config::default() }, app.close().await).await;
    let attempt =
        async |name: &str, password: &str| app.get_as(&basic(name, password), "/v2/").await.status.as_u16();
    let mut statuses = Vec::new();
    for at in 0..7 {
        statuses.push(attempt("alice", &format!("wrong {at}")).await);
    }
    assert_eq!(statuses, [401, 401, 401, 401, 401, 401, 429]);
    assert_eq!(attempt("alice", PASSWORD).await, 429, "the right password has to wait, too");
    assert_eq!(attempt("admin", PASSWORD).await, 200, "others do not");
}
