//! `lode user`, `robot`, `group`, `token`, `key`, `grant`, `visibility`, `protect` and `quota`: who may do what on
//! a server.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use clap::ValueEnum;
use http::Method;
use lode_client::{ByteSize, CredentialKey, Login as Credential, Registry};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use super::exchange::exchange;
use crate::{
    args::{
        Grant, Group, GroupAdd, Key, KeyAdd, Protect, Quota, Robot, SetVisibility, Token, TokenCreate,
        TokenRevoke, TokenRotate, User, UserAdd, UserSet, Visibility,
    },
    connect::{Connection, credential_file},
    error::{Failure, Outcome},
    pages::{fetch_all, fetch_lists},
    table::Table,
    times::{parse_duration, show_field},
    ui,
};

/// The longest password that is read.
const MAX_PASSWORD_BYTES: u64 = 64 << 10;

pub(crate) async fn user(connection: &Connection, command: User) -> Outcome {
    let registry = connection.default_registry()?;
    match command {
        User::Add(UserAdd { name, password_stdin, server_role, json }) => {
            let mut body = json!({ "name": name });
            if password_stdin || ui::stdin_is_terminal() {
                body["password"] = read_new_password()?.into();
            }
            if let Some(role) = server_role {
                body["server_role"] = value_name(role).into();
            }
            let created: Value = registry.json_post("lode/v1/accounts", &body).await?;
            if json {
                return ui::json(&created);
            }
            ui::print_message(format!("created user {name}"));
            Ok(())
        }
        User::List(args) => {
            let accounts = fetch_all(&registry, "lode/v1/accounts", "accounts").await?;
            if args.json {
                return ui::json(&json!({ "accounts": accounts }));
            }
            let row = |account: &Value| {
                vec![
                    text(account, "name"),
                    text(account, "kind"),
                    text(account, "server_role"),
                    state(account).to_owned(),
                ]
            };
            let rows: Vec<Vec<String>> = accounts.iter().map(row).collect();
            Table::new(&["NAME", "KIND", "SERVER ROLE", "STATE"], &rows).print()
        }
        User::Set(UserSet { name, password_stdin, server_role, disable, enable }) => {
            let mut body = Map::new();
            if password_stdin {
                body.insert("password".to_owned(), read_new_password()?.into());
            }
            if let Some(role) = server_role {
                body.insert("server_role".to_owned(), value_name(role).into());
            }
            if disable || enable {
                body.insert("disabled".to_owned(), disable.into());
            }
            if body.is_empty() {
                return Err(Failure::new("nothing to change")
                    .hint("--password-stdin, --server-role, --disable or --enable"));
            }
            send(&registry, Method::PATCH, &account_path(&name), &body.into()).await?;
            ui::print_message(format!("changed user {name}"));
            Ok(())
        }
        User::Password => change_own_password(&registry).await,
        User::Rm { name } => delete_account(&registry, "user", &name).await,
    }
}

async fn change_own_password(registry: &Registry) -> Outcome {
    let me: Value = registry.json_get("lode/v1/me").await?;
    let (current, new) = match ui::stdin_is_terminal() {
        true => (ui::ask_password("Current password: ")?, ui::ask_new_password()?),
        false => {
            let both = read_password()?;
            let lines = both.split_once('\n').map(|(current, new)| (current.trim_end_matches('\r'), new));
            let (current, new) =
                lines.ok_or_else(|| Failure::new("expected two lines: the current and the new password"))?;
            (current.to_owned(), new.to_owned())
        }
    };
    let name = text(&me, "name");
    let body = json!({ "password": new, "current_password": current });
    send(registry, Method::PATCH, &account_path(&name), &body).await?;
    ui::print_message(
        "changed your password; sign in again in browsers, and on other machines with `lode login`",
    );
    if replace_saved_password(&registry.credential_key(), &name, &current, &new)? {
        ui::print_message("the saved login of this machine has the new password");
    }
    Ok(())
}

pub(crate) async fn robot(connection: &Connection, command: Robot) -> Outcome {
    let registry = connection.default_registry()?;
    match command {
        Robot::Add { name, json } => {
            let body = json!({ "name": name, "kind": "robot" });
            let created: Value = registry.json_post("lode/v1/accounts", &body).await?;
            if json {
                return ui::json(&created);
            }
            ui::print_message(format!(
                "created robot {name}; grant it a role with `lode grant add`, and create its token with `lode token create NAME --account {name}`"
            ));
            Ok(())
        }
        Robot::List { namespace, json } => {
            let path = format!("lode/v1/accounts?namespace={}", segment(&namespace));
            let robots = fetch_all(&registry, &path, "accounts").await?;
            if json {
                return ui::json(&json!({ "accounts": robots }));
            }
            let row = |robot: &Value| {
                vec![text(robot, "name"), show_field(robot, "created_at", "never"), state(robot).to_owned()]
            };
            let rows: Vec<Vec<String>> = robots.iter().map(row).collect();
            Table::new(&["NAME", "CREATED", "STATE"], &rows).print()
        }
        Robot::Rm { name } => delete_account(&registry, "robot", &name).await,
    }
}

pub(crate) async fn group(connection: &Connection, command: Group) -> Outcome {
    let registry = connection.default_registry()?;
    let nothing = Value::Null;
    match command {
        Group::Add(GroupAdd { name, provider, claim }) => {
            let body = json!({ "name": name, "provider": provider, "claim": claim });
            send(&registry, Method::POST, "lode/v1/groups", &body).await?;
            ui::print_message(format!("created group {name}"));
        }
        Group::List { json } => {
            let listed = json!({ "groups": list_groups(&registry).await? });
            if json {
                return ui::json(&listed);
            }
            let rows: Vec<Vec<String>> = items(&listed, "groups")
                .map(|group| {
                    let members: Vec<&str> =
                        group["members"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                    vec![text(group, "name"), text(group, "provider"), members.join(", ")]
                })
                .collect();
            return Table::new(&["GROUP", "PROVIDER", "MEMBERS"], &rows).print();
        }
        Group::Rm { name } => {
            send(&registry, Method::DELETE, &format!("lode/v1/groups/{}", segment(&name)), &nothing).await?;
            ui::print_message(format!("deleted group {name}"));
        }
        Group::Join { group, account } => {
            send(&registry, Method::PUT, &member_path(&group, &account), &nothing).await?;
            ui::print_message(format!("{account} is a member of {group}"));
        }
        Group::Leave { group, account } => {
            send(&registry, Method::DELETE, &member_path(&group, &account), &nothing).await?;
            ui::print_message(format!("{account} is not a member of {group}"));
        }
    }
    Ok(())
}

pub(crate) async fn token(connection: &Connection, command: Token) -> Outcome {
    let registry = connection.default_registry()?;
    match command {
        Token::Create(args) => create_token(&registry, args).await,
        Token::List(args) => {
            let path = of_account("lode/v1/tokens", args.account.as_deref());
            let listed = json!({ "tokens": fetch_all(&registry, &path, "tokens").await? });
            if args.json {
                return ui::json(&listed);
            }
            let rows: Vec<Vec<String>> = items(&listed, "tokens")
                .map(|token| {
                    let expires = match token["revoked_at"].is_null() {
                        true => show_field(token, "expires_at", "never"),
                        false => "revoked".to_owned(),
                    };
                    vec![
                        text(token, "id"),
                        text(token, "name"),
                        text(&token["scope"], "access"),
                        format!("…{}", text(token, "last_four")),
                        expires,
                        show_field(token, "used_at", "never"),
                    ]
                })
                .collect();
            Table::new(&["ID", "NAME", "ACCESS", "SECRET", "EXPIRES", "LAST USED"], &rows)
                .optional(&["SECRET", "LAST USED", "ACCESS"])
                .wide(args.wide)
                .print()
        }
        Token::Revoke(args) => {
            let path = of_account(&format!("lode/v1/tokens/{}", segment(&args.id)), args.account.as_deref());
            let revoked = registry.json_stream(Method::DELETE, &path, &Value::Null).await;
            revoked.map_err(|error| unknown_token(error, &args))?;
            ui::print_message(format!("revoked token {}", args.id));
            Ok(())
        }
        Token::Rotate(TokenRotate { token: args, json }) => {
            let path = format!("lode/v1/tokens/{}/rotate", segment(&args.id));
            let path = of_account(&path, args.account.as_deref());
            let created = registry.json_post(&path, &Value::Null).await;
            let created: Value = created.map_err(|error| unknown_token(error, &args))?;
            if json {
                return ui::json(&created);
            }
            ui::print_message(format!(
                "revoked token {}, and created {}; its secret is shown only now:",
                args.id,
                text(&created, "id")
            ));
            ui::print_line(text(&created, "secret"))
        }
        Token::Exchange(args) => exchange(&registry, args).await,
    }
}

/// An account finds only its own tokens by their id.
fn unknown_token(error: lode_client::Error, args: &TokenRevoke) -> Failure {
    let is_unknown = error.is_not_found() && args.account.is_none();
    let failure = Failure::from(error);
    match is_unknown {
        true => failure.hint(format!(
            "a token of another account needs its name, such as `{} --account team+ci`",
            args.id
        )),
        false => failure,
    }
}

async fn create_token(registry: &Registry, args: TokenCreate) -> Outcome {
    let expires = parse_duration(&args.expires)?;
    let mut body = json!({
        "name": args.name, "access": value_name(args.access), "targets": args.targets,
        "expires_in_seconds": expires.as_secs(),
    });
    if let Some(account) = args.account {
        body["account"] = account.into();
    }
    let created: Value = registry.json_post("lode/v1/tokens", &body).await?;
    if args.json {
        return ui::json(&created);
    }
    // Standard output has only the secret, so that a script can save it.
    ui::print_message(format!("created token {}; its secret is shown only now:", text(&created, "id")));
    ui::print_line(text(&created, "secret"))
}

pub(crate) async fn grant(connection: &Connection, command: Grant) -> Outcome {
    let registry = connection.default_registry()?;
    match command {
        Grant::Add(args) => {
            let role = value_name(args.role);
            let body = json!({ "target": args.target, "subject": args.subject, "role": role });
            send(&registry, Method::PUT, "lode/v1/grants", &body).await?;
            ui::print_message(format!("{} may {role} {}", args.subject, args.target));
        }
        Grant::List(args) => {
            let listed = list_rights(&registry, args.target.as_deref()).await?;
            if args.json {
                return ui::json(&listed);
            }
            let mut rows: Vec<Vec<String>> = items(&listed, "grants")
                .map(|grant| {
                    let kind = if grant["is_group"] == true { " (group)" } else { "" };
                    vec![
                        text(grant, "target"),
                        format!("{}{kind}", text(grant, "subject")),
                        text(grant, "role"),
                    ]
                })
                .collect();
            rows.sort();
            // A visibility is the role read of everyone or anyone.
            let open = items(&listed, "visibilities").filter_map(|row| {
                let subject = match row["visibility"].as_str()? {
                    "internal" => "everyone",
                    "public" => "anyone",
                    _ => return None,
                };
                let is_listed = args.target.as_ref().is_none_or(|target| row["target"] == target[..]);
                is_listed.then(|| vec![text(row, "target"), subject.to_owned(), "read".to_owned()])
            });
            let rows: Vec<Vec<String>> = rows.into_iter().chain(open).collect();
            return Table::new(&["TARGET", "SUBJECT", "ROLE"], &rows).print();
        }
        Grant::Rm { subject, target } => {
            let body = json!({ "target": target, "subject": subject });
            send(&registry, Method::PUT, "lode/v1/grants", &body).await?;
            ui::print_message(format!("{subject} has no role on {target}"));
        }
    }
    Ok(())
}

pub(crate) async fn visibility(connection: &Connection, args: SetVisibility) -> Outcome {
    let registry = connection.default_registry()?;
    let SetVisibility { target, visibility, json } = args;
    if let Some(visibility) = visibility {
        let visibility = Some(visibility).filter(|it| !matches!(it, Visibility::Inherit)).map(value_name);
        let body = json!({ "target": target, "visibility": visibility });
        send(&registry, Method::PUT, "lode/v1/visibility", &body).await?;
        ui::print_message(match visibility {
            Some(visibility) => format!("{target} is {visibility}"),
            None => format!("{target} has the visibility of its namespace"),
        });
        return Ok(());
    }
    let listed = list_rights(&registry, Some(&target)).await?;
    // Its own visibility, else that of its namespace, the only other one in the list.
    let own = items(&listed, "visibilities").find(|row| row["target"] == target[..]);
    let set = own.or_else(|| items(&listed, "visibilities").next());
    let visibility = set.map_or_else(|| "private".to_owned(), |row| text(row, "visibility"));
    if json {
        return ui::json(&json!({ "target": target, "visibility": visibility, "inherited": own.is_none() }));
    }
    ui::print_line(match set.filter(|_| own.is_none()) {
        Some(namespace) => format!("{target} is {visibility}, like {}", text(namespace, "target")),
        None => format!("{target} is {visibility}"),
    })
}

pub(crate) async fn key(connection: &Connection, command: Key) -> Outcome {
    let registry = connection.default_registry()?;
    match command {
        Key::Add(KeyAdd { file, name, account, json }) => {
            let line = read_key(&file)?;
            let mut body = json!({ "key": line.trim() });
            if let Some(name) = name {
                body["name"] = name.into();
            }
            if let Some(account) = account {
                body["account"] = account.into();
            }
            let added: Value = registry.json_post("lode/v1/keys", &body).await?;
            if json {
                return ui::json(&added);
            }
            ui::print_message(format!(
                "added key {} as {}",
                text(&added, "fingerprint"),
                text(&added, "name")
            ));
            Ok(())
        }
        Key::List(args) => {
            let path = of_account("lode/v1/keys", args.account.as_deref());
            let listed = json!({ "keys": fetch_all(&registry, &path, "keys").await? });
            if args.json {
                return ui::json(&listed);
            }
            let rows: Vec<Vec<String>> = items(&listed, "keys")
                .map(|key| {
                    vec![
                        text(key, "id"),
                        text(key, "name"),
                        text(key, "fingerprint"),
                        show_field(key, "used_at", "never"),
                    ]
                })
                .collect();
            Table::new(&["ID", "NAME", "FINGERPRINT", "LAST USED"], &rows)
                .optional(&["LAST USED", "FINGERPRINT"])
                .wide(args.wide)
                .print()
        }
        Key::Rm { id, account } => {
            let path = of_account(&format!("lode/v1/keys/{}", segment(&id)), account.as_deref());
            send(&registry, Method::DELETE, &path, &Value::Null).await?;
            ui::print_message(format!("removed key {id}"));
            Ok(())
        }
    }
}

pub(crate) async fn protect(connection: &Connection, args: Protect) -> Outcome {
    let registry = connection.default_registry()?;
    let Protect { target, patterns, none, json } = args;
    if !patterns.is_empty() || none {
        let body = json!({ "target": target, "patterns": patterns });
        send(&registry, Method::PUT, "lode/v1/protected-tags", &body).await?;
        ui::print_message(match none {
            true => format!("{target} has no protected tags"),
            false => format!("{target} protects the tags {}", patterns.join(", ")),
        });
        return Ok(());
    }
    let path = format!("lode/v1/protected-tags?target={}", segment(&target));
    let listed = json!({ "protected_tags": fetch_all(&registry, &path, "protected_tags").await? });
    if json {
        return ui::json(&listed);
    }
    let rows: Vec<Vec<String>> = items(&listed, "protected_tags")
        .map(|rule| vec![text(rule, "target"), text(rule, "pattern")])
        .collect();
    Table::new(&["TARGET", "PATTERN"], &rows).print()
}

pub(crate) async fn quota(connection: &Connection, command: Quota) -> Outcome {
    let registry = connection.default_registry()?;
    match command {
        Quota::Set { namespace, limit } => {
            let body = json!({ "namespace": namespace, "limit_bytes": limit.0 });
            send(&registry, Method::PUT, "lode/v1/quotas", &body).await?;
            ui::print_message(format!("the blobs of {namespace} may have {limit}"));
            Ok(())
        }
        Quota::Rm { namespace } => {
            let body = json!({ "namespace": namespace, "limit_bytes": null });
            send(&registry, Method::PUT, "lode/v1/quotas", &body).await?;
            ui::print_message(format!("{namespace} has no quota"));
            Ok(())
        }
        Quota::List { namespace, json } => {
            let path = match &namespace {
                Some(namespace) => format!("lode/v1/quotas?namespace={}", segment(namespace)),
                None => "lode/v1/quotas".to_owned(),
            };
            let listed = json!({ "quotas": fetch_all(&registry, &path, "quotas").await? });
            if json {
                return ui::json(&listed);
            }
            let size = |quota: &Value, key: &str, absent: &str| {
                quota[key].as_u64().map_or_else(|| absent.to_owned(), ui::format_size)
            };
            // As it was set.
            let limit = |quota: &Value| {
                quota["limit_bytes"].as_u64().map_or_else(|| "none".to_owned(), |at| ByteSize(at).to_string())
            };
            let rows: Vec<Vec<String>> = items(&listed, "quotas")
                .map(|quota| {
                    vec![
                        text(quota, "namespace"),
                        limit(quota),
                        size(quota, "used_bytes", "none"),
                        // Only auditors and administrators get it.
                        size(quota, "own_bytes", "-"),
                        size(quota, "logical_bytes", "none"),
                    ]
                })
                .collect();
            Table::new(&["NAMESPACE", "LIMIT", "USED", "OWN", "LOGICAL"], &rows).print()
        }
    }
}

fn read_key(file: &Path) -> Outcome<String> {
    let mut line = String::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().lock().take(MAX_PASSWORD_BYTES).read_to_string(&mut line),
        false => File::open(file).and_then(|open| open.take(MAX_PASSWORD_BYTES).read_to_string(&mut line)),
    };
    match read {
        Ok(_) if line.contains("PRIVATE KEY") => {
            Err(Failure::new(format!("{} is the private key, which stays secret", file.display()))
                .hint("name the file that ends in .pub"))
        }
        Ok(_) => Ok(line),
        Err(error) => Err(Failure::with_source(format!("failed to read {}", file.display()), &error)),
    }
}

fn state(account: &Value) -> &'static str {
    if account["is_disabled"] == true { "disabled" } else { "" }
}

/// All groups. The members of a group may be on several pages, one after the other.
async fn list_groups(registry: &Registry) -> Outcome<Vec<Value>> {
    let mut groups: Vec<Value> = Vec::new();
    for mut group in fetch_all(registry, "lode/v1/groups", "groups").await? {
        match groups.last_mut().filter(|last| last["name"] == group["name"]) {
            Some(last) => {
                let (Value::Array(members), Value::Array(more)) =
                    (&mut last["members"], group["members"].take())
                else {
                    continue;
                };
                members.extend(more);
            }
            None => groups.push(group),
        }
    }
    Ok(groups)
}

/// The roles and visibilities on a target, or all of them.
async fn list_rights(registry: &Registry, target: Option<&str>) -> Outcome<Value> {
    let path = match target {
        Some(target) => format!("lode/v1/grants?target={}", segment(target)),
        None => "lode/v1/grants".to_owned(),
    };
    let [grants, visibilities] = fetch_lists(registry, &path, ["grants", "visibilities"]).await?;
    Ok(json!({ "grants": grants, "visibilities": visibilities }))
}

async fn delete_account(registry: &Registry, kind: &str, name: &str) -> Outcome {
    send(registry, Method::DELETE, &account_path(name), &Value::Null).await?;
    ui::print_message(format!("deleted {kind} {name}"));
    Ok(())
}

/// Deletes what a path names.
pub(super) async fn delete(registry: &Registry, path: &str) -> Outcome {
    send(registry, Method::DELETE, path, &Value::Null).await
}

/// Sends a request whose response has no content.
async fn send(registry: &Registry, method: Method, path: &str, body: &Value) -> Outcome {
    registry.json_stream(method, path, body).await?;
    Ok(())
}

fn account_path(name: &str) -> String {
    format!("lode/v1/accounts/{}", segment(name))
}

fn member_path(group: &str, account: &str) -> String {
    format!("lode/v1/groups/{}/members/{}", segment(group), segment(account))
}

fn of_account(path: &str, account: Option<&str>) -> String {
    match account {
        Some(account) => format!("{path}?account={}", segment(account)),
        None => path.to_owned(),
    }
}

/// A name as a part of a path or a query.
pub(super) fn segment(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

/// The name of an argument's value, which the API uses, too.
fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

pub(super) fn items<'a>(listed: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    listed[key].as_array().into_iter().flatten()
}

pub(super) fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// Replaces the password of this account in the saved login for the server, if that has the current one.
fn replace_saved_password(server: &CredentialKey, name: &str, current: &str, new: &str) -> Outcome<bool> {
    let Some(file) = credential_file() else { return Ok(false) };
    let is_this = |login: &Credential| login.username == name && login.password == current;
    let Some(saved) = file.get(server)?.filter(is_this) else { return Ok(false) };
    file.set(server, Credential { password: new.to_owned(), ..saved })?;
    Ok(true)
}

/// Like [`read_password`], but on a terminal it asks twice.
fn read_new_password() -> Outcome<String> {
    if ui::stdin_is_terminal() { ui::ask_new_password() } else { read_password() }
}

/// Reads a password from standard input; on a terminal it asks for it.
pub(super) fn read_password() -> Outcome<String> {
    if ui::stdin_is_terminal() {
        return ui::ask_password("Password: ");
    }
    let mut text = String::new();
    std::io::stdin().lock().take(MAX_PASSWORD_BYTES).read_to_string(&mut text)?;
    let password = text.trim_end_matches(['\r', '\n']);
    match password.is_empty() {
        true => Err(Failure::new("standard input has no password")),
        false => Ok(password.to_owned()),
    }
}
