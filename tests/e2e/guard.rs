//! Web pages of other sites must not reach an open server on loopback. The Host and Origin values follow the
//! contracts.

use lode_tests::raw::exchange;
use lode_tests::server::{Folder, Options, Server};

fn get_status(server: &Server, target: &str, host: &str, origin: Option<&str>) -> u16 {
    let origin = origin.map(|o| format!("origin: {o}\r\n")).unwrap_or_default();
    let request = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n{origin}connection: close\r\n\r\n");
    exchange(server.address, request.as_bytes()).unwrap().status
}

#[tokio::test]
async fn requests_from_other_sites_are_refused() {
    let server =
        Folder::new().start(Options::new().env("LODE_PUBLIC_URL", "http://models.example.com")).await;
    let port = server.address.port();
    for target in ["/v2/", "/api/tags", "/lode/v1/models"] {
        for host in [
            format!("127.0.0.1:{port}"),
            format!("localhost:{port}"),
            format!("[::1]:{port}"),
            "models.example.com".into(),
        ] {
            assert_eq!(get_status(&server, target, &host, None), 200, "{target} host {host}");
        }
        for host in [
            "evil.example",
            "evil.example:5000",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "10.0.0.1",
            "",
        ] {
            let status = get_status(&server, target, host, None);
            assert!(
                [400, 403].contains(&status) && (host.is_empty() || status == 403),
                "{target} host `{host}`: {status}"
            );
        }
        let own = format!("127.0.0.1:{port}");
        for origin in
            ["https://evil.example", "null", "http://127.0.0.1.evil.example", "http://evil.example:80"]
        {
            assert_eq!(get_status(&server, target, &own, Some(origin)), 403, "{target} origin {origin}");
        }
        for origin in [format!("http://127.0.0.1:{port}"), format!("http://localhost:{port}")] {
            assert_eq!(get_status(&server, target, &own, Some(&origin)), 200, "{target} origin {origin}");
        }
    }
}
