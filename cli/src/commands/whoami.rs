//! `lode whoami`: the account whose credentials the command line uses for a registry.

use serde_json::Value;

use crate::{
    args::Whoami,
    connect::{self, Connection},
    error::{Failure, Outcome},
    ui,
};

pub(crate) async fn run(connection: &Connection, args: Whoami) -> Outcome {
    let registry = connection.registry(args.server.as_deref())?;
    let host = registry.host();
    let is_signed_in = connect::saved_login(&registry)?.is_some();
    let account: Value = registry.json_get("lode/v1/me").await.map_err(|error| match error {
        lode_client::Error::Unauthorized { .. } if !is_signed_in => {
            Failure::new(format!("not signed in to {host}")).hint(format!("`lode login {host}`"))
        }
        error if error.is_not_found() => {
            Failure::new(format!("{host} does not name accounts: it is not a Lode server"))
        }
        other => other.into(),
    })?;
    if args.json {
        return ui::json(&account);
    }
    match account["name"].as_str() {
        Some(name) => ui::print_line(format!("{name} on {host}{}", limits(&account))),
        None => {
            ui::print_message(format!("{host} has no accounts: every client may do everything"));
            Ok(())
        }
    }
}

/// The server role of the account, and what the credentials may do at most.
fn limits(account: &Value) -> String {
    let role =
        account["server_role"].as_str().map(|role| format!(", {role} of the server")).unwrap_or_default();
    let targets: Vec<&str> =
        account["targets"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let access = match (account["access"].as_str(), targets.is_empty()) {
        (None | Some("full"), true) => String::new(),
        (None | Some("full"), false) => format!(", limited to {}", targets.join(", ")),
        (Some(access), true) => format!(", with `{access}` access"),
        (Some(access), false) => format!(", with `{access}` access to {}", targets.join(", ")),
    };
    role + &access
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_are_named() {
        let check = |account: Value, expect: &str| assert_eq!(limits(&account), expect, "{account}");
        check(json!({"access": "full", "targets": [], "server_role": null}), "");
        check(json!({"access": "full", "targets": [], "server_role": "admin"}), ", admin of the server");
        check(json!({"access": "full", "targets": ["team/*"]}), ", limited to team/*");
        check(json!({"access": "write", "targets": []}), ", with `write` access");
        check(json!({"access": "read", "targets": ["a/b", "c/*"]}), ", with `read` access to a/b, c/*");
    }
}
