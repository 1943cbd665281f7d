//! Thousands of wrong passwords: how many of them cost a hash, and whom they delay.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use axum::extract::ConnectInfo;
use futures::future::join_all;
use http::Request;

use super::access::{PASSWORD, basic, closed};
use super::{App, TestResponse};

/// Failures from one address without a delay, for one account and for all.
const FREE_OF_PAIR: usize = 5;
const FREE_OF_ADDRESS: usize = 50;

async fn attempt(app: &App, address: impl Into<IpAddr>, name: &str, password: &str) -> TestResponse {
    let peer = SocketAddr::new(address.into(), 9);
    app.send_as(&basic(name, password), Request::get("/v2/").extension(ConnectInfo(peer)), "").await
}

fn wrong(at: usize) -> String {
    format!("wrong {at}")
}

/// How many of the attempts were compared with a hash. The others have to be refused without one.
fn count_compared(responses: &[TestResponse]) -> usize {
    for response in responses {
        assert!([401, 429].contains(&response.status.as_u16()), "{}", response.text());
        assert_eq!(response.status == 429, response.headers.contains_key("retry-after"));
    }
    responses.iter().filter(|response| response.status == 401).count()
}

#[tokio::test]
async fn ten_thousand_wrong_passwords() {
    let app = closed().await;
    app.user("alice").await;
    // 1. Eight thousand from one address, for a hundred names. Each delay doubles, so this test waits too short
    // for more than a few further hashes.
    let mut responses = Vec::new();
    for at in 0..8000 {
        let name = if at % 100 == 0 { "alice".to_owned() } else { format!("user-{}", at % 100) };
        responses.push(attempt(&app, [192, 0, 2, 1], &name, &wrong(at)).await);
        if responses.len() == FREE_OF_ADDRESS + 2 {
            // The right password waits, too.
            for name in ["admin", "alice"] {
                assert_eq!(attempt(&app, [192, 0, 2, 1], name, PASSWORD).await.status, 429, "{name}");
            }
        }
    }
    let first = responses.iter().position(|response| response.status == 429).unwrap();
    assert_eq!(first, FREE_OF_ADDRESS + 1, "the first failure that is not free delays the next attempt");
    let compared = count_compared(&responses);
    assert!(compared <= first + 8, "{compared} hashes");
    // 2. A thousand from the addresses of one network, which count as one.
    responses.clear();
    for at in 0..1000 {
        let address: IpAddr = format!("2001:db8::{at:x}").parse().unwrap();
        responses.push(attempt(&app, address, "admin", &wrong(at)).await);
    }
    let compared = count_compared(&responses);
    assert!((FREE_OF_PAIR + 1..FREE_OF_PAIR + 8).contains(&compared), "{compared} hashes");
    // 3. A thousand from ten addresses, all at once.
    let attempts = (0..1000).map(async |at| {
        let address = [198, 51, 100, (at % 10) as u8];
        attempt(&app, address, "admin", &wrong(at)).await
    });
    let compared = count_compared(&join_all(attempts).await);
    assert!(compared <= 10 * (FREE_OF_PAIR + 8), "{compared} hashes");
    // 4. Sign-ins from elsewhere do not wait.
    for name in ["admin", "alice"] {
        assert_eq!(attempt(&app, [203, 0, 113, 1], name, PASSWORD).await.status, 200, "{name}");
    }
    // 5. The server remembers this password for a while; guesses from other addresses wait all the same.
    for at in 0..=FREE_OF_PAIR {
        assert_eq!(attempt(&app, [192, 0, 2, 2], "alice", &wrong(at)).await.status, 401);
    }
    assert_eq!(attempt(&app, [192, 0, 2, 2], "alice", PASSWORD).await.status, 429);
    // 6. A token does not wait.
    let token = app.token(&basic("alice", PASSWORD), serde_json::json!({"name": "x"})).await.0;
    let peer = SocketAddr::from(([192, 0, 2, 1], 9));
    let request = Request::get("/v2/").extension(ConnectInfo(peer));
    assert_eq!(app.send_as(&token, request, "").await.status, 200);
}

/// containerd sends a password by POST, and again by GET if it is refused.
#[tokio::test]
async fn a_repeated_attempt_counts_once() {
    let app = closed().await;
    app.user("alice").await;
    let address = [192, 0, 2, 1];
    for at in 0..FREE_OF_PAIR {
        for _ in 0..3 {
            assert_eq!(attempt(&app, address, "alice", &wrong(at)).await.status, 401);
        }
    }
    assert_eq!(attempt(&app, address, "alice", PASSWORD).await.status, 200, "five failures cause no delay");
    // A password that was wrong may be the new one of the account.
    assert_eq!(attempt(&app, address, "alice", "another password").await.status, 401);
    let change = serde_json::json!({"password": "another password"});
    app.admin("PATCH", "/lode/v1/accounts/alice", change).await;
    assert_eq!(attempt(&app, address, "alice", "another password").await.status, 200);
}

/// The time of a refusal does not tell whether the account exists.
#[tokio::test]
async fn unknown_names_take_as_long_as_known_ones() {
    let app = closed().await;
    app.user("alice").await;
    app.user("gone").await;
    app.admin("PATCH", "/lode/v1/accounts/gone", serde_json::json!({"disabled": true})).await;
    app.admin("POST", "/lode/v1/accounts", serde_json::json!({"name": "team+ci", "kind": "robot"})).await;
    let names = ["alice", "nobody", "gone", "team+ci"];
    let mut times = names.map(|_| Vec::new());
    // In turns, from addresses of their own: load of this machine then slows all of them down.
    for round in 0..9 {
        for (at, name) in names.into_iter().enumerate() {
            let begun = Instant::now();
            let refused = attempt(&app, [192, 0, 2, (10 * at + round) as u8], name, "wrong").await;
            times[at].push(begun.elapsed());
            assert_eq!(refused.status, 401, "{name}");
        }
    }
    let [known, others @ ..] = times.map(|mut times| {
        times.sort();
        times[times.len() / 2]
    });
    // Without a hash, it would be a hundred times faster.
    assert!(known > Duration::from_millis(2), "{known:?}");
    for (name, other) in names[1..].iter().zip(others) {
        assert!(other * 2 > known && other < known * 2, "{name}: {other:?}, and alice: {known:?}");
    }
}
