//! Signs in with a browser (RFC 8628): the command shows the address of a page, a person allows the sign-in
//! there, and the command gets a token.

use std::time::{Duration, Instant};

use http::StatusCode;
use lode_client::Registry;
use serde_json::Value;

use crate::{
    error::{Failure, Outcome},
    ui,
};

const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// The unit of the server's intervals.
const SECOND: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });
/// Seconds between two requests, if the server does not say; and at most.
const POLL_INTERVAL: u64 = 5;
const MAX_POLL_INTERVAL: u64 = 60;
/// Seconds for which a code is valid, if the server does not say; and at most.
const CODE_TIME: u64 = 15 * 60;
const MAX_CODE_TIME: u64 = 3600;

/// Signs in with a browser, and returns the token. `None` if the registry does not offer it.
pub(super) async fn sign_in_by_browser(registry: &Registry) -> Outcome<Option<String>> {
    let fields = [("client_id", "lode"), ("client_name", &client_name()), ("scope", "full")];
    let (status, started) = registry.form_post("hf/oauth/device", &fields).await?;
    let started: Value = match started {
        Some(started) if status != StatusCode::NOT_FOUND => started,
        // Another registry.
        _ => return Ok(None),
    };
    if !status.is_success() {
        // The error format of the distribution specification: another registry.
        if started["errors"].is_array() {
            return Ok(None);
        }
        return Err(refused(registry, status, &started));
    }
    let text = |key: &str| started[key].as_str().unwrap_or_default().to_owned();
    let (device_code, url) = (text("device_code"), text("verification_uri_complete"));
    if device_code.is_empty() || url.is_empty() {
        return Ok(None);
    }
    let valid = started["expires_in"].as_u64().unwrap_or(CODE_TIME).min(MAX_CODE_TIME);
    let minutes = ui::counted(valid.div_ceil(60), "minute");
    ui::print_message(format!(
        "Open this page within {minutes}, and allow the code {}:\n  {url}",
        text("user_code")
    ));
    if !ui::stdin_is_terminal() {
        ui::print_message(format!("Without a browser, {}.", with_token(registry)));
    }
    let mut interval = started["interval"].as_u64().unwrap_or(POLL_INTERVAL).clamp(1, MAX_POLL_INTERVAL);
    let expires = Instant::now() + Duration::from_secs(valid);
    let fields = [("grant_type", DEVICE_GRANT), ("device_code", &device_code), ("client_id", "lode")];
    while Instant::now() < expires {
        tokio::time::sleep(SECOND * u32::try_from(interval).unwrap_or(u32::MAX)).await;
        let (status, polled): (StatusCode, Value) = match registry.form_post("hf/oauth/token", &fields).await
        {
            Ok((status, polled)) => (status, polled.unwrap_or_default()),
            // The server may respond again before the code expires.
            Err(error) if error.is_transient() => (StatusCode::SERVICE_UNAVAILABLE, Value::Null),
            Err(error) => return Err(error.into()),
        };
        if let Some(token) = polled["access_token"].as_str() {
            return Ok(Some(token.to_owned()));
        }
        let is_busy = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
        match polled["error"].as_str() {
            Some("authorization_pending") => {}
            Some("access_denied") => return Err(Failure::new("the sign-in was denied")),
            Some("expired_token") => break,
            error if error == Some("slow_down") || is_busy => {
                interval = (interval + POLL_INTERVAL).min(MAX_POLL_INTERVAL);
            }
            _ => return Err(refused(registry, status, &polled)),
        }
    }
    Err(Failure::new("the code has expired")
        .hint("run `lode login` again")
        .hint(format!("without a browser, {}", with_token(registry))))
}

/// How a program signs in.
fn with_token(registry: &Registry) -> String {
    format!(
        "`lode login --username token --password-stdin {}` reads a token of `lode token create`",
        registry.credential_key()
    )
}

fn refused(registry: &Registry, status: StatusCode, response: &Value) -> Failure {
    let failure =
        Failure::new(format!("{} refused the sign-in: {}", registry.host(), reason(status, response)));
    if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
        return failure.hint("run `lode login` again later");
    }
    failure.hint("`lode login --username NAME` signs in with a password or a token")
}

/// Why the server refused a request, in its own words if it gives any (RFC 6749, 5.2).
pub(super) fn reason(status: StatusCode, response: &Value) -> String {
    let text = ["error_description", "error"].iter().find_map(|key| response[*key].as_str());
    text.map_or_else(|| format!("it returned {status}"), str::to_owned)
}

/// The name under which the person finds the token later.
fn client_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("lode on {host}")
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use lode_client::{Client, ClientOptions};

    use super::*;

    const STARTED: &str = r#"{"device_code": "d", "user_code": "BCDF-GHJK", "interval": 1,
        "verification_uri_complete": "http://127.0.0.1/device"}"#;
    const PENDING: (u16, &str) = (400, r#"{"error": "authorization_pending"}"#);

    /// Signs in at a server that sends these responses, one to a request.
    async fn sign_in(responses: Vec<(u16, &'static str)>) -> Outcome<Option<String>> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for (status, body) in responses {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                let (mut line, mut length) = (String::new(), 0);
                while stream.read_line(&mut line).unwrap() > 2 {
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    line.clear();
                }
                stream.read_exact(&mut vec![0; length]).unwrap();
                let head =
                    format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}", body.len());
                write!(stream.get_mut(), "{head}\r\n\r\n{body}").unwrap();
            }
        });
        let client = Client::new(ClientOptions::default()).unwrap();
        let registry = client.registry(&format!("http://{address}")).unwrap();
        let signed_in = sign_in_by_browser(&registry).await;
        server.join().unwrap();
        signed_in
    }

    #[tokio::test]
    async fn other_registries_ask_for_a_user_name() {
        for response in [
            (404, r#"{"error": "not found"}"#),
            (404, "404 page not found"),
            (405, ""),
            (502, "<html>"),
            (200, "<html>"),
            (200, "{}"),
            (403, r#"{"errors": [{"code": "FORBIDDEN", "message": "CSRF token not found"}]}"#),
        ] {
            assert!(sign_in(vec![response]).await.unwrap().is_none(), "{response:?}");
        }
    }

    #[tokio::test]
    async fn a_refusal_is_reported() {
        for (status, body, expected) in [
            (400, r#"{"error": "invalid_scope", "error_description": "no such scope"}"#, "no such scope"),
            (429, r#"{"error": "too many requests"}"#, "too many requests"),
            (503, r#"{"error": "not set up yet"}"#, "not set up yet"),
            (500, "{}", "500 Internal Server Error"),
        ] {
            let failure = sign_in(vec![(status, body)]).await.unwrap_err().to_string();
            assert!(failure.contains(expected) && failure.contains("hint: "), "{failure}");
        }
        let denied = vec![(200, STARTED), PENDING, (400, r#"{"error": "access_denied"}"#)];
        assert!(sign_in(denied).await.unwrap_err().to_string().contains("denied"));
        let expired = vec![(200, STARTED), (400, r#"{"error": "expired_token"}"#)];
        let expired = sign_in(expired).await.unwrap_err().to_string();
        assert!(expired.contains("expired") && expired.contains("--password-stdin"), "{expired}");
    }

    #[tokio::test]
    async fn a_busy_server_is_polled_again() {
        let token = sign_in(vec![
            (200, STARTED),
            PENDING,
            (429, r#"{"error": "too many requests; try again in 5 seconds"}"#),
            (503, "<html>"),
            (400, r#"{"error": "slow_down"}"#),
            (200, r#"{"access_token": "hf_lodeX"}"#),
        ]);
        assert_eq!(token.await.unwrap().as_deref(), Some("hf_lodeX"));
    }
}
