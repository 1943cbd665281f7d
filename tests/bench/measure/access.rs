//! What access control costs: requests to a public repository without credentials, compared with the same
//! requests with each kind of credential; sign-ins with a password; and a flood of wrong passwords.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::Options;
use crate::http::{Body, Connection};
use crate::load::{CLIENTS, REPOSITORY, Request, TaggedManifests, parallel};
use crate::table::median;
use crate::target::{ADMIN_PASSWORD, Place, RunningServer, Target};

/// Accounts that sign in with a password, one after the other.
const ACCOUNTS: usize = 20;
/// Turns of each caller in a round. Short turns, because the speed of a machine changes from second to second.
const TURNS: u32 = 10;

/// Measures each program of Lode; returns the report.
pub(crate) fn measure(place: &Place, options: &Options, run: &mut u32) -> io::Result<String> {
    let mut report = String::new();
    for target in options.targets.iter().filter(|target| target.is_lode()) {
        *run += 1;
        let server = target.start_with_accounts(place, *run)?;
        report.push_str(&format!("\n### {}, {}: access control\n\n", place.name(), target.name));
        report.push_str(&requests(&server, options)?);
        report.push_str(&passwords(&server, options.time)?);
        drop(server);
        report.push_str(&without_accounts(target, place, options, run)?);
    }
    Ok(report)
}

/// A caller's requests without a pause.
#[derive(Clone)]
struct Turn {
    /// Requests a second.
    rate: f64,
    /// The server's processor time of a request, in microseconds.
    cpu: f64,
}

fn requests(server: &RunningServer, options: &Options) -> io::Result<String> {
    // 1. A public repository, and the credentials.
    let basic = basic("admin", ADMIN_PASSWORD);
    let tagged = TaggedManifests::push(server.address, &basic)?;
    let namespace = REPOSITORY.split('/').next().unwrap_or_default();
    let public = json!({ "target": format!("{namespace}/*"), "visibility": "public" });
    call(server.address, &basic, "PUT", "/lode/v1/visibility", Some(&public))?;
    let token = call(server.address, &basic, "POST", "/lode/v1/tokens", Some(&json!({ "name": "bench" })))?;
    let scope = format!("/token?service=bench&scope=repository:{REPOSITORY}:pull");
    let access = call(server.address, &basic, "GET", &scope, None)?;
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let callers = [
        ("no credentials", String::new()),
        ("token", format!("Bearer {}", text(&token, "secret"))),
        ("access token", format!("Bearer {}", text(&access, "token"))),
        ("password", basic),
    ];
    // 2. The callers in turn. Each is compared with the first one's turn of the same time.
    let mut table = String::from(
        "| row | caller | requests a second | against no credentials | CPU (us) |\n| --- | --- | ---: | ---: | ---: |\n",
    );
    for request in [Request::GetByTag, Request::Head, Request::Blob] {
        let mut turns = vec![Vec::new(); callers.len()];
        for turn in 0..(options.rounds * TURNS) as usize {
            for at in 0..callers.len() {
                let at = (turn + at) % callers.len();
                let before = server.cpu_seconds();
                let time = options.time / TURNS;
                let (count, time) = tagged.send_requests(server.address, &callers[at].1, request, time)?;
                let cpu = (server.cpu_seconds() - before) * 1e6 / count as f64;
                turns[at].push(Turn { rate: count as f64 / time.as_secs_f64(), cpu });
            }
        }
        for ((caller, _), own) in callers.iter().zip(&turns) {
            let of = |value: &dyn Fn(&Turn) -> f64| median(own.iter().map(value).collect());
            let ratio = median(own.iter().zip(&turns[0]).map(|(own, first)| own.rate / first.rate).collect());
            let (name, rate, cpu) = (request.name(), of(&|turn| turn.rate), of(&|turn| turn.cpu));
            table.push_str(&format!("| {name} | {caller} | {rate:.0} | {ratio:.2} | {cpu:.0} |\n"));
        }
    }
    Ok(table)
}

/// The same requests to a server without accounts, as before the first account exists.
fn without_accounts(target: &Target, place: &Place, options: &Options, run: &mut u32) -> io::Result<String> {
    *run += 1;
    let server = target.start(place, *run)?;
    let tagged = TaggedManifests::push(server.address, "")?;
    let mut text = String::new();
    for request in [Request::GetByTag, Request::Head, Request::Blob] {
        let rates = (0..options.rounds).map(|_| {
            let (count, time) = tagged.send_requests(server.address, "", request, options.time)?;
            Ok(count as f64 / time.as_secs_f64())
        });
        let rate = median(rates.collect::<io::Result<Vec<f64>>>()?);
        text.push_str(&format!("- {}, a server without accounts: {rate:.0} a second\n", request.name()));
    }
    Ok(text)
}

/// How long a sign-in with a password takes, and what a flood of wrong ones does to the server.
fn passwords(server: &RunningServer, time: Duration) -> io::Result<String> {
    // 1. One after the other; each account's first request computes its hash.
    let admin = basic("admin", ADMIN_PASSWORD);
    let mut times = Vec::new();
    for at in 0..ACCOUNTS {
        let name = format!("user-{at}");
        let account = json!({ "name": name, "password": ADMIN_PASSWORD });
        call(server.address, &admin, "POST", "/lode/v1/accounts", Some(&account))?;
        let mut connection = Connection::with_authorization(server.address, &basic(&name, ADMIN_PASSWORD));
        let began = Instant::now();
        connection.send_and_discard("GET", "/v2/", "", Body::None)?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    // 2. Wrong passwords of many names from many addresses, as fast as the server responds.
    server.reset_peak();
    let before = server.peak_bytes() >> 20;
    let (refused, throttled, began) = (AtomicU64::new(0), AtomicU64::new(0), Instant::now());
    let (over, names) = (AtomicBool::new(false), AtomicU64::new(0));
    let threads = 4 * CLIENTS;
    parallel(threads, threads, |_: &mut (), _| {
        while !over.load(Ordering::Relaxed) && began.elapsed() < time {
            let n = names.fetch_add(1, Ordering::Relaxed);
            let mut connection =
                Connection::with_authorization(server.address, &basic(&format!("guess-{n}"), "wrong"));
            let from = format!("10.{}.{}.{}", n >> 16 & 255, n >> 8 & 255, n & 255);
            connection.set_forwarded_for(&from);
            let head = connection.send_and_discard("GET", "/v2/", "", Body::None)?;
            match head.status {
                401 => refused.fetch_add(1, Ordering::Relaxed),
                429 => throttled.fetch_add(1, Ordering::Relaxed),
                other => return Err(io::Error::other(format!("got {other}"))),
            };
        }
        over.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(format!(
        "- sign-in with a password: {:.0} ms\n- wrong passwords from {threads} connections: {:.0} compared and {:.0} refused a second, peak memory {} MiB ({before} MiB before)\n",
        median(times),
        refused.into_inner() as f64 / seconds,
        throttled.into_inner() as f64 / seconds,
        server.peak_bytes() >> 20,
    ))
}

fn basic(name: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
}

/// Sends a request with or without a JSON body; returns the JSON of the response, if there is any.
fn call(
    address: SocketAddr,
    authorization: &str,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> io::Result<Value> {
    let mut connection = Connection::with_authorization(address, authorization);
    let bytes = body.map(Value::to_string).unwrap_or_default();
    let body = match body {
        Some(_) => Body::Bytes { content_type: "application/json", bytes: bytes.as_bytes() },
        None => Body::None,
    };
    let head = connection.send(method, path, "", body)?;
    let mut text = Vec::new();
    connection.receive(&head, &mut |bytes| text.extend_from_slice(bytes))?;
    match head.status {
        200..300 => Ok(serde_json::from_slice(&text).unwrap_or_default()),
        status => {
            let text = String::from_utf8_lossy(&text);
            Err(io::Error::other(format!("{method} {path}: {status} {text}")))
        }
    }
}
