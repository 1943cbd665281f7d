//! Settings of the server and of workers. Flags override LODE_* variables, which override the file, which
//! overrides the defaults. Each field of the two `Config` structs is a key of the file and a variable of the
//! same name.

use std::path::Path;

use serde::{Serialize, de::DeserializeOwned};
use toml::{Table, Value};

use crate::{
    args,
    error::{CANNOT_RUN, Failure, Outcome},
    suggest::closest,
};

/// The setting that is an address, or a port.
const LISTEN: &str = "listen";
const LISTEN_HINT: &str = "an address has a port: 127.0.0.1:5000 for this machine, 0.0.0.0:5000 for all addresses; a port alone is one of this machine";

/// Reads an environment variable; tests pass their own.
pub(crate) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(crate) fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The settings of `lode serve`.
pub(crate) struct ServeSettings {
    pub(crate) registry: lode_registry::Config,
    /// Settings of the local worker: scheduling only. Its addresses and folders follow from the server's.
    pub(crate) worker: lode_worker::Config,
    pub(crate) no_worker: bool,
    pub(crate) demo: bool,
}

/// Worker settings that the local worker of `serve` reads from the file and the environment.
const LOCAL_WORKER_KEYS: &[&str] = &[
    "device",
    "nvrtc",
    "cpu",
    "keep_alive",
    "max_queue",
    "num_parallel",
    "max_loaded_models",
    "kv_cache_type",
    "context_length",
    "metrics_models",
    "cache_size",
    "load_timeout",
    "threads",
    "text_timeout",
    "text_memory",
];

pub(crate) fn serve(args: &args::Serve, env: Env) -> Outcome<ServeSettings> {
    let mut table = read_file(args.config.as_deref())?;
    let no_worker = take_bool(&mut table, "no_worker", args.no_worker)?;
    let demo = take_bool(&mut table, "demo", args.demo)?;
    let mut worker = take_table(&mut table, "worker")?;
    // The table may also have the settings of a remote worker; they have no effect here.
    check_keys::<lode_worker::Config>(&worker, args.config.as_deref(), "[worker] of ")?;
    check_keys::<lode_registry::Config>(&table, args.config.as_deref(), "")?;
    let flags = [
        ("listen", args.listen.clone().map(Value::from)),
        ("data", args.data.as_ref().map(|path| Value::from(path.to_string_lossy().into_owned()))),
        ("database", args.database.clone().map(Value::from)),
        ("storage", args.storage.clone().map(Value::from)),
        ("allow_anonymous", args.allow_anonymous.map(Value::from)),
        ("read_only", args.read_only.map(Value::from)),
        ("public_url", list_or_one::<lode_registry::Config>("public_url", &args.public_url)),
        ("trusted_proxies", list(&args.trusted_proxy)),
        ("allow_egress", list(&args.allow_egress)),
        ("allow_origin", list(&args.allow_origin)),
        ("max_connections", args.max_connections.map(i64::from).map(Value::from)),
        ("max_body", args.max_body.clone().map(Value::from)),
        ("body_budget", args.body_budget.clone().map(Value::from)),
        ("tls_cert", args.tls_cert.as_ref().map(|path| Value::from(path.to_string_lossy().into_owned()))),
        ("tls_key", args.tls_key.as_ref().map(|path| Value::from(path.to_string_lossy().into_owned()))),
    ];
    let registry: lode_registry::Config = resolve(table, env, None, flags)?;
    worker.retain(|key, _| LOCAL_WORKER_KEYS.contains(&key));
    let worker_flags = [("device", args.device.clone().map(Value::from))];
    let worker = resolve(worker, env, Some(LOCAL_WORKER_KEYS), worker_flags)?;
    Ok(ServeSettings { registry, worker, no_worker, demo })
}

/// The location of a server's data, resolved like the settings of the server itself.
pub(crate) fn data_location(args: &args::DataLocation, env: Env) -> Outcome<lode_registry::Config> {
    let mut table = read_file(args.config.as_deref())?;
    for other in ["no_worker", "demo", "worker"] {
        table.remove(other);
    }
    check_keys::<lode_registry::Config>(&table, args.config.as_deref(), "")?;
    let flags = [
        ("data", args.data.as_ref().map(|path| Value::from(path.to_string_lossy().into_owned()))),
        ("database", args.database.clone().map(Value::from)),
        ("storage", args.storage.clone().map(Value::from)),
    ];
    resolve(table, env, None, flags)
}

pub(crate) fn worker(args: &args::Worker, env: Env) -> Outcome<lode_worker::Config> {
    let mut table = read_file(args.config.as_deref())?;
    let worker = take_table(&mut table, "worker")?;
    check_keys::<lode_worker::Config>(&worker, args.config.as_deref(), "[worker] of ")?;
    let sources: Vec<String> = args.source.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let flags = [
        ("registry", args.registry.clone().map(Value::from)),
        ("listen", args.listen.clone().map(Value::from)),
        ("advertise", args.advertise.clone().map(Value::from)),
        ("worker_token", args.token.clone().map(Value::from)),
        ("models", list(&args.models)),
        ("cache", args.cache.as_ref().map(|path| Value::from(path.to_string_lossy().into_owned()))),
        ("sources", list(&sources)),
        ("device", args.device.clone().map(Value::from)),
    ];
    resolve(worker, env, None, flags)
}

/// The settings of a worker, as far as `lode doctor` reads them.
pub(crate) fn doctor(args: &args::Doctor, env: Env) -> Outcome<lode_worker::Config> {
    let mut table = read_file(args.config.as_deref())?;
    let worker = take_table(&mut table, "worker")?;
    let flags = [
        ("cache", args.cache.as_ref().map(|path| Value::from(path.to_string_lossy().into_owned()))),
        ("device", args.device.clone().map(Value::from)),
    ];
    resolve(worker, env, Some(&["device", "cache", "nvrtc", "cpu"]), flags)
}

/// Prints the effective settings in the format of the settings file, with secrets hidden.
pub(crate) fn print(settings: &ServeSettings) -> Outcome<String> {
    let failed = |error: toml::ser::Error| Failure::with_source("cannot print the settings", &error);
    let mut table = Table::try_from(&settings.registry).map_err(failed)?;
    table.insert("no_worker".into(), settings.no_worker.into());
    table.insert("demo".into(), settings.demo.into());
    let mut worker = Table::try_from(&settings.worker).map_err(failed)?;
    worker.retain(|key, _| LOCAL_WORKER_KEYS.contains(&key));
    table.insert("worker".into(), worker.into());
    toml::to_string_pretty(&table).map_err(failed)
}

/// Builds a config from the file, the variables and the flags, with defaults. Only the variables of `keys`
/// are read.
fn resolve<C: DeserializeOwned + Serialize + Default>(
    mut table: Table,
    env: Env,
    keys: Option<&[&str]>,
    flags: impl IntoIterator<Item = (&'static str, Option<Value>)>,
) -> Outcome<C> {
    for (key, kind) in kinds::<C>() {
        let wanted = keys.is_none_or(|keys| keys.contains(&key.as_str()));
        let variable = format!("LODE_{}", key.to_uppercase());
        if let Some(text) = env(&variable).filter(|_| wanted) {
            let text = if key == LISTEN { listen_address(&text) } else { text };
            let value = kind.read(&text, |value| fits::<C>(&key, value)).ok_or_else(|| {
                let why = match (kind.expected(), try_one::<C>(&key, &Value::from(text.as_str()))) {
                    (Some(expected), _) => format!("expected {expected}"),
                    (None, Err(error)) => error.message().to_owned(),
                    (None, Ok(_)) => "invalid value".to_owned(),
                };
                let failure =
                    Failure::new(format!("{variable} is `{}`: {why}", shown(&key, &text))).code(CANNOT_RUN);
                if key == LISTEN { failure.hint(LISTEN_HINT) } else { failure }
            })?;
            table.insert(key, value);
        }
    }
    for (key, value) in flags {
        if let Some(value) = value {
            let value = match value.as_str().filter(|_| key == LISTEN) {
                Some(text) => Value::from(listen_address(text)),
                None => value,
            };
            if let Err(error) = try_one::<C>(key, &value) {
                let flag = match key {
                    // The flag of a list setting is singular.
                    "trusted_proxies" => "trusted-proxy".to_owned(),
                    "sources" => "source".to_owned(),
                    "worker_token" => "token".to_owned(),
                    key => key.replace('_', "-"),
                };
                let text =
                    value.as_str().map(|text| format!(" is `{}`", shown(key, text))).unwrap_or_default();
                let why = error.message();
                let failure = Failure::new(format!("--{flag}{text}: {why}")).code(CANNOT_RUN);
                return Err(if key == LISTEN { failure.hint(LISTEN_HINT) } else { failure });
            }
            table.insert(key.to_owned(), value);
        }
    }
    C::deserialize(Value::Table(table)).map_err(|error| {
        // The message consists of the problem and, on a separate line, the key.
        let message = error.to_string().trim_end().replace('\n', " ");
        Failure::new(format!("invalid settings: {message}")).code(CANNOT_RUN)
    })
}

fn shown(key: &str, text: &str) -> String {
    const HIDDEN: [&str; 5] = ["token", "secret", "key", "database", "endpoint"];
    if HIDDEN.iter().any(|word| key.contains(word)) { "***".into() } else { text.to_owned() }
}

/// The type of a setting, derived from its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bool,
    Number,
    List,
    Text,
    /// An unset option: a number or text.
    Unknown,
}

impl Kind {
    fn expected(self) -> Option<&'static str> {
        match self {
            Kind::Bool => Some("true or false"),
            Kind::Number => Some("a number"),
            Kind::List | Kind::Text | Kind::Unknown => None,
        }
    }

    /// Parses `text` as a value of this kind that `fits` accepts.
    fn read(self, text: &str, fits: impl Fn(&Value) -> bool) -> Option<Value> {
        let text = text.trim();
        let number = || {
            text.parse::<i64>().ok().map(Value::from).or_else(|| text.parse::<f64>().ok().map(Value::from))
        };
        let candidates = match self {
            Kind::Bool => vec![match text.to_ascii_lowercase().as_str() {
                "1" | "true" | "yes" | "on" => Value::from(true),
                "0" | "false" | "no" | "off" => Value::from(false),
                _ => return None,
            }],
            Kind::Number => vec![number()?],
            Kind::List => vec![Value::from(
                text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>(),
            )],
            Kind::Text | Kind::Unknown => [Some(Value::from(text)), number()].into_iter().flatten().collect(),
        };
        candidates.into_iter().find(|value| fits(value))
    }
}

/// The keys of all settings: of the server, and of workers.
pub(crate) fn keys() -> Vec<String> {
    let all = kinds::<lode_registry::Config>().into_iter().chain(kinds::<lode_worker::Config>());
    all.map(|(key, _)| key).collect()
}

/// A listen address as the settings expect it: a port alone, and `localhost`, mean this machine.
fn listen_address(text: &str) -> String {
    let port = text.strip_prefix("localhost:").unwrap_or(text);
    match port.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) => text.to_owned(),
    }
}

fn kinds<C: Serialize + Default>() -> Vec<(String, Kind)> {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(C::default()) else { return Vec::new() };
    fields
        .into_iter()
        .map(|(key, value)| {
            let kind = match value {
                serde_json::Value::Bool(_) => Kind::Bool,
                serde_json::Value::Number(_) => Kind::Number,
                serde_json::Value::Array(_) => Kind::List,
                serde_json::Value::String(_) => Kind::Text,
                serde_json::Value::Null | serde_json::Value::Object(_) => Kind::Unknown,
            };
            (key, kind)
        })
        .collect()
}

fn try_one<C: DeserializeOwned>(key: &str, value: &Value) -> Result<C, toml::de::Error> {
    C::deserialize(Value::Table(Table::from_iter([(key.to_owned(), value.clone())])))
}

fn fits<C: DeserializeOwned>(key: &str, value: &Value) -> bool {
    try_one::<C>(key, value).is_ok()
}

fn list(values: &[String]) -> Option<Value> {
    (!values.is_empty()).then(|| Value::from(values.to_vec()))
}

/// The value of a repeatable flag for a setting that may or may not be a list.
fn list_or_one<C: DeserializeOwned>(key: &str, values: &[String]) -> Option<Value> {
    let all = list(values)?;
    match values {
        [one] if !fits::<C>(key, &all) => Some(Value::from(one.as_str())),
        _ => Some(all),
    }
}

fn read_file(path: Option<&Path>) -> Outcome<Table> {
    let Some(path) = path else { return Ok(Table::new()) };
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::with_source(format!("cannot read the settings file {}", path.display()), &error)
            .code(CANNOT_RUN)
    })?;
    text.parse().map_err(|error: toml::de::Error| {
        // The line itself may contain a password.
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        Failure::new(format!("{}: line {line}: {}", path.display(), error.message())).code(CANNOT_RUN)
    })
}

/// Fails if the file, or its table `place`, has a key that `C` does not have.
fn check_keys<C: Serialize + Default>(table: &Table, file: Option<&Path>, place: &str) -> Outcome {
    let known = kinds::<C>();
    let known = || known.iter().map(|(key, _)| key.as_str());
    let (Some(file), Some(key)) = (file, table.keys().find(|key| known().all(|known| known != *key))) else {
        return Ok(());
    };
    let failure = Failure::new(format!("{place}{} has no setting `{key}`", file.display())).code(CANNOT_RUN);
    Err(match closest(key, known()) {
        Some(similar) => failure.hint(format!("did you mean `{similar}`?")),
        None => failure.hint("`lode serve --print-config` prints the settings"),
    })
}

fn take_bool(table: &mut Table, key: &str, flag: Option<bool>) -> Outcome<bool> {
    let in_file = match table.remove(key) {
        None => false,
        Some(Value::Boolean(value)) => value,
        Some(_) => {
            return Err(Failure::new(format!("{key} in the file must be true or false")).code(CANNOT_RUN));
        }
    };
    Ok(flag.unwrap_or(in_file))
}

fn take_table(table: &mut Table, key: &str) -> Outcome<Table> {
    match table.remove(key) {
        None => Ok(Table::new()),
        Some(Value::Table(inner)) => Ok(inner),
        Some(_) => Err(Failure::new(format!("{key} in the file is not a table")).code(CANNOT_RUN)),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, time::Duration};

    use clap::Parser;
    use serde::Deserialize;

    use super::*;
    use crate::args::{Cli, Command};

    fn settings(words: &[&str], variables: &[(&str, &str)], file: &str) -> Outcome<ServeSettings> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lode.toml");
        std::fs::write(&path, file).unwrap();
        let path = path.to_str().unwrap().to_owned();
        let line = [&["lode", "serve", "--config", &path], words].concat();
        let Command::Serve(args) = Cli::try_parse_from(line).unwrap().command else {
            panic!("the command is serve")
        };
        let variables: HashMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        serve(&args, &|name| variables.get(name).cloned())
    }

    #[test]
    fn only_the_worker_token_enrols_a_worker() {
        let token = |words: &[&str], variables: &[(&str, &str)], file: &str| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("lode.toml");
            std::fs::write(&path, file).unwrap();
            let path = path.to_str().unwrap().to_owned();
            let line = [&["lode", "worker", "--config", &path], words].concat();
            let Command::Worker(args) = Cli::try_parse_from(line).unwrap().command else {
                panic!("the command is worker")
            };
            let variables: HashMap<&str, &str> = variables.iter().copied().collect();
            let config = worker(&args, &|name| variables.get(name).map(|value| (*value).to_owned())).unwrap();
            config.worker_token.map(|token| token.expose().to_owned())
        };
        let file = "[worker]\nworker_token = \"file\"";
        let (api, join) = (("LODE_TOKEN", "api"), ("LODE_WORKER_TOKEN", "join"));
        assert_eq!(token(&[], &[api], ""), None);
        assert_eq!(token(&[], &[api, join], file).as_deref(), Some("join"));
        assert_eq!(token(&[], &[api], file).as_deref(), Some("file"));
        assert_eq!(token(&["--token", "flag"], &[api, join], file).as_deref(), Some("flag"));
    }

    #[test]
    fn flags_win_over_variables_over_the_file_over_defaults() {
        let file = "listen = \"127.0.0.1:1\"\ngc_grace = \"1h\"\nallow_sparse = true\n[worker]\nmax_queue = 7\nnum_parallel = 2\n";
        let all = settings(
            &["--listen", "127.0.0.1:3"],
            &[("LODE_LISTEN", "127.0.0.1:2"), ("LODE_GC_GRACE", "90s"), ("LODE_MAX_QUEUE", "9")],
            file,
        );
        let all = all.unwrap();
        assert_eq!(all.registry.listen.port(), 3);
        assert_eq!(all.registry.gc_grace, Duration::from_secs(90));
        assert_eq!(all.registry.gc_interval, lode_registry::Config::default().gc_interval);
        assert!(all.registry.allow_sparse);
        assert_eq!((all.worker.max_queue, all.worker.num_parallel), (9, 2));
        let variables =
            settings(&[], &[("LODE_LISTEN", "127.0.0.1:2"), ("LODE_ALLOW_SPARSE", "false")], file).unwrap();
        assert_eq!(variables.registry.listen.port(), 2);
        assert!(!variables.registry.allow_sparse);
    }

    #[test]
    fn a_port_is_an_address_of_this_machine() {
        let listen = |words: &[&str], variables: &[(&str, &str)]| {
            settings(words, variables, "").map(|all| all.registry.listen.to_string())
        };
        assert_eq!(listen(&["--listen", "7301"], &[]).unwrap(), "127.0.0.1:7301");
        assert_eq!(listen(&["--listen", "localhost:7301"], &[]).unwrap(), "127.0.0.1:7301");
        assert_eq!(listen(&[], &[("LODE_LISTEN", "7301")]).unwrap(), "127.0.0.1:7301");
        assert_eq!(listen(&["--listen", "[::]:7301"], &[]).unwrap(), "[::]:7301");
        for wrong in ["70000", ":7301", "127.0.0.1", "hub.local:7301"] {
            let failure = listen(&["--listen", wrong], &[]).unwrap_err().to_string();
            assert!(failure.contains(wrong) && failure.contains("0.0.0.0:5000"), "{failure}");
        }
    }

    #[test]
    fn durations_lists_and_switches() {
        let all = settings(
            &["--demo", "--no-worker=false", "--trusted-proxy", "10.0.0.0/8,192.168.0.1"],
            &[("LODE_UPLOAD_LEASE", "0s"), ("LODE_KEEP_ALIVE", "-1"), ("LODE_KV_CACHE_TYPE", "f32")],
            "no_worker = true",
        )
        .unwrap();
        assert!(all.demo && !all.no_worker);
        assert_eq!(all.registry.upload_lease, Duration::ZERO);
        assert_eq!(all.registry.trusted_proxies.len(), 2);
        assert_eq!(all.worker.kv_cache_type, "f32");
    }

    #[test]
    fn bad_settings_are_named() {
        let check = |variables: &[(&str, &str)], file: &str, expect: &[&str]| {
            let failure =
                settings(&[], variables, file).err().map(|failure| failure.to_string()).unwrap_or_default();
            for part in expect {
                assert!(failure.contains(part), "`{failure}` does not contain `{part}`");
            }
        };
        check(&[("LODE_GC_GRACE", "soon")], "", &["LODE_GC_GRACE", "soon"]);
        check(&[("LODE_ALLOW_SPARSE", "maybe")], "", &["LODE_ALLOW_SPARSE", "maybe"]);
        let expected = &["LODE_STORAGE_ENDPOINT", "expected a URL that starts with http:// or https://"];
        check(&[("LODE_STORAGE_ENDPOINT", "minio:9000")], "", expected);
        check(&[], "gc_grac = \"1h\"", &["gc_grac"]);
        check(&[], "listen = 5", &["settings"]);
        check(&[], "gc_grace = \"soon\"", &["settings", "`gc_grace`"]);
        check(&[], "worker = 5", &["worker"]);
        check(&[], "[worker]\nkeepalive = \"1h\"", &["worker", "keepalive"]);
        check(&[], "demo = true\nlisten = ", &["lode.toml", "line 2"]);
    }

    #[test]
    fn bad_flags_are_named_as_they_are_written() {
        let message_of = |words: &[&str]| {
            settings(words, &[], "").err().map(|failure| failure.to_string()).unwrap_or_default()
        };
        assert!(message_of(&["--listen", ":5000"]).starts_with("error: --listen is `:5000`: "));
        assert!(
            message_of(&["--trusted-proxy", "nonsense"])
                .starts_with("error: --trusted-proxy: `nonsense` is not")
        );
        for url in ["lode.example", "lode.example:5000"] {
            let expect = format!(
                "error: --public-url is `{url}`: expected a URL that starts with http:// or https://, such as https://lode.example"
            );
            assert_eq!(message_of(&["--public-url", url]), expect);
        }
        assert!(message_of(&["--storage", "/srv/lode"]).contains("file:///"));
        assert!(!message_of(&["--database", "postgres://lode:hu/sh@db/lode"]).contains("hu/sh"));
    }

    #[test]
    fn settings_errors_do_not_reveal_secrets() {
        let message_of = |variables: &[(&str, &str)], file: &str| {
            settings(&[], variables, file).err().map(|failure| failure.to_string()).unwrap_or_default()
        };
        let address = "postgres://lode:hu/sh@db/lode";
        for message in [
            message_of(&[("LODE_DATABASE", address)], ""),
            message_of(&[], &format!("database = \"{address}\"")),
            message_of(&[], &format!("[[webhook]]\nurl = \"{address}\"\nsecret = \"hush\"")),
            message_of(&[], "[[mirror]]\npassword = \"hush"),
        ] {
            assert!(message.starts_with("error: "), "{message}");
            assert!(!message.contains("hu/sh") && !message.contains("hush"), "{message}");
        }
    }

    #[test]
    fn printed_settings_hide_secrets_and_can_be_parsed() {
        let all = settings(
            &["--listen", "127.0.0.1:7777"],
            &[("LODE_WORKER_TOKEN", "very-secret"), ("LODE_DATABASE", "postgres://u:very-secret@db/lode")],
            "",
        )
        .unwrap();
        let text = print(&all).unwrap();
        assert!(text.contains("127.0.0.1:7777") && !text.contains("very-secret"), "{text}");
        let again = settings(&[], &[], &text).unwrap();
        assert_eq!(again.registry.listen.port(), 7777);
        assert_eq!(again.registry.gc_grace, all.registry.gc_grace);
    }

    #[test]
    fn printed_durations_are_accepted_by_the_variables() {
        let durations = [
            ("LODE_KEEP_ALIVE", "24h", "24h"),
            ("LODE_GC_GRACE", "1day", "24h"),
            ("LODE_AUDIT_HISTORY", "400days", "400d"),
            ("LODE_LOAD_TIMEOUT", "1m 30s", "90s"),
        ];
        for (variable, text, expect) in durations {
            let printed = print(&settings(&[], &[(variable, text)], "").unwrap()).unwrap();
            let key = variable.trim_start_matches("LODE_").to_lowercase();
            assert!(printed.contains(&format!("\n{key} = \"{expect}\"\n")), "{printed}");
            let again = print(&settings(&[], &[(variable, expect)], "").unwrap()).unwrap();
            assert_eq!(again, printed);
        }
    }

    const TEMPLATE: &str = include_str!("../../deploy/lode.toml");

    #[test]
    fn the_template_as_it_is_changes_nothing() {
        let all = settings(&[], &[], TEMPLATE).unwrap();
        assert_eq!(print(&all).unwrap(), print(&settings(&[], &[], "").unwrap()).unwrap());
    }

    #[test]
    fn the_service_leaves_every_setting_to_its_environment() {
        // A flag in ExecStart would override /etc/lode/environment.
        let unit = include_str!("../../deploy/lode.service");
        let starts: Vec<&str> = unit.lines().filter_map(|line| line.strip_prefix("ExecStart=")).collect();
        assert_eq!(starts, ["lode serve"]);
        assert!(unit.contains("\nEnvironment=LODE_DATA=/var/lib/lode\n"));
    }

    #[test]
    fn the_template_knows_every_setting_and_no_other() {
        let lines = TEMPLATE.lines().map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with([' ', '#']) => setting,
            _ => line,
        });
        let file = lines.collect::<Vec<_>>().join("\n");
        settings(&[], &[], &file).unwrap();
        let table: Table = file.parse().unwrap();
        for (key, _) in kinds::<lode_registry::Config>() {
            assert!(table.contains_key(&key), "deploy/lode.toml lacks `{key}`");
        }
        let worker = &table["worker"];
        lode_worker::Config::deserialize(worker.clone()).unwrap();
        for (key, _) in kinds::<lode_worker::Config>().iter().filter(|(key, _)| key != "runner_program") {
            assert!(worker.get(key).is_some(), "deploy/lode.toml lacks `{key}` in [worker]");
        }
    }
}
