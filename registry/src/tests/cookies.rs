//! Cookies over https, and what clients try to put into headers of responses.

use http::Request;
use http::request::Builder;
use lode_client::Secret;
use serde_json::json;

use super::access::PASSWORD;
use super::{App, TestResponse};
use crate::Config;

const HOST: &str = "lode.example";
const FORM: &str = "name=alice&password=a+long+password";

async fn start(public_url: Option<&str>) -> App {
    let app = App::with(Config {
        admin_password: Some(Secret::new(PASSWORD)),
        public_url: public_url.map(|url| url.parse().unwrap()),
        ..Config::default()
    })
    .await;
    app.user("alice").await;
    app.user("mallory").await;
    app
}

fn at(request: Builder) -> Builder {
    request.header("host", HOST).header("sec-fetch-site", "same-origin")
}

/// Signs in; returns the `Set-Cookie` header.
async fn sign_in(app: &App, name: &str) -> String {
    let response = app.send(at(Request::post("/login")), FORM.replace("alice", name)).await;
    assert_eq!(response.status, 303, "{}", response.text());
    response.header("set-cookie").to_owned()
}

/// The account of the cookies' session; empty without a session.
async fn who(app: &App, cookies: &[&str]) -> String {
    let request = cookies
        .iter()
        .fold(at(Request::get("/lode/v1/me")), |request, cookie| request.header("cookie", *cookie));
    let me = app.send(request, "").await;
    if me.status == 200 { me.json()["name"].as_str().unwrap().to_owned() } else { String::new() }
}

#[tokio::test]
async fn cookies_over_https_are_of_this_host_alone() {
    let app = start(Some("https://lode.example")).await;
    let set = sign_in(&app, "alice").await;
    let (pair, attributes) = set.split_once(';').unwrap();
    // Browsers accept the prefix only with `Secure` and `Path=/`, and without a domain.
    assert_eq!(attributes, " Path=/; Max-Age=604800; HttpOnly; SameSite=Lax; Secure");
    let value = pair.strip_prefix("__Host-lode=").unwrap();
    assert_eq!(who(&app, &[pair]).await, "alice");
    // 1. Another host of the domain, or a page over plain http, can set a cookie without the prefix: it is none.
    let other = sign_in(&app, "mallory").await;
    let foreign = other.split(';').next().unwrap().replace("__Host-", "");
    for cookies in [
        &[&foreign[..]][..],
        &[&format!("lode={value}")],
        &[&format!("__host-lode={value}")],
        &[&format!("__Secure-lode={value}")],
        &[&format!("x__Host-lode={value}")],
        &[&format!("__Host-lode ={value}x")],
    ] {
        assert_eq!(who(&app, cookies).await, "", "{cookies:?}");
    }
    // 2. With the right one, it changes nothing, in any order.
    for cookies in [
        &[&format!("{foreign}; {pair}")[..]][..],
        &[&format!("{pair}; {foreign}")],
        &[&foreign, pair],
        &[&format!("a=b; {pair};  c=d")],
    ] {
        assert_eq!(who(&app, cookies).await, "alice", "{cookies:?}");
    }
    // 3. Values that are no session.
    for wrong in [
        "__Host-lode=",
        "__Host-lode",
        &format!("__Host-lode=\"{value}\""),
        &format!("__Host-lode={value}%00"),
    ] {
        assert_eq!(who(&app, &[wrong]).await, "", "{wrong}");
    }
    // 4. Signing out removes it under the same name.
    let page = app.send(at(Request::get("/-/account")).header("cookie", pair), "").await;
    let (_, rest) = page.text().split_once("name=\"csrf\" value=\"").unwrap();
    let form = format!("csrf={}", rest.split('"').next().unwrap());
    let out = app.send(at(Request::post("/logout")).header("cookie", pair), form).await;
    assert_eq!(out.header("set-cookie"), "__Host-lode=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax; Secure");
    assert_eq!(who(&app, &[pair]).await, "");
}

/// Without a public URL, only a trusted proxy can say that the client uses https.
#[tokio::test]
async fn clients_do_not_choose_the_kind_of_cookie() {
    let app = start(None).await;
    let request = at(Request::post("/login")).header("x-forwarded-proto", "https");
    let set = app.send(request, FORM).await;
    let set = set.header("set-cookie");
    assert!(set.starts_with("lode=") && !set.contains("Secure"), "{set}");
}

#[tokio::test]
async fn clients_put_nothing_into_headers() {
    let app = start(None).await;
    let check = |place: &str, response: &TestResponse| {
        for (name, value) in &response.headers {
            assert_ne!(name, "x-injected", "{place}");
            assert!(
                !value.as_bytes().contains(&b'\r') && !value.as_bytes().contains(&b'\n'),
                "{place}: {value:?}"
            );
        }
        assert!(!response.status.is_server_error(), "{place}: {} {}", response.status, response.text());
    };
    let line = "%0d%0ax-injected:%201%0d%0a";
    for path in [
        format!("/login?next=/device{line}"),
        format!("/login?next={line}"),
        format!("/device?user_code={line}"),
        format!("/connect?name={line}&key={line}"),
        format!("/login/{line}?next={line}"),
        format!("/setup?token={line}"),
        format!("/v2/team{line}/manifests/latest"),
        format!("/v2/team/app/manifests/{line}"),
        format!("/v2/_catalog?n=1&last={line}"),
        format!("/token?scope=repository:a{line}:pull&service={line}"),
        format!("/lode/v1/models?n=1&last={line}"),
    ] {
        check(&path, &app.send(at(Request::get(&path)), "").await);
    }
    for (path, form) in [
        ("/login", format!("{FORM}&next=/device{line}")),
        ("/login", format!("name={line}&password={line}")),
        ("/hf/oauth/device", format!("client_id={line}&client_name={line}")),
        ("/hf/oauth/token", format!("grant_type={line}&device_code={line}")),
        ("/token", format!("grant_type=password&username={line}&password={line}&service={line}")),
    ] {
        check(path, &app.send(at(Request::post(path)), form).await);
    }
    // The challenge quotes nothing that ends it.
    for host in ["lode.example\", x=\"y", "lode.example/\\", "lode.example, Basic realm=x"] {
        let response = app.send(Request::get("/v2/team/app/manifests/latest").header("host", host), "").await;
        check(host, &response);
        if let Some(challenge) = response.headers.get("www-authenticate") {
            let challenge = challenge.to_str().unwrap();
            assert!(!challenge.contains("x=") && !challenge.contains("Basic"), "{host}: {challenge}");
        }
    }
    let created = app.admin("POST", "/lode/v1/tokens", json!({"name": "a\r\nx-injected: 1"})).await;
    check("the name of a token", &created);
}
