//! Requests of the server to other hosts: the settings that allow them, and the proxy from the environment.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use lode_tests::oci::Registry;
use lode_tests::server::{Folder, Options};
use serde_json::json;

/// Starts a proxy that returns 404 for every host. Returns its URL and the request lines that it receives.
fn proxy() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let notes = heard.clone();
    std::thread::spawn(move || {
        for peer in listener.incoming() {
            let mut peer = peer.unwrap();
            let mut lines = BufReader::new(peer.try_clone().unwrap()).lines().map_while(Result::ok);
            notes.lock().unwrap().extend(lines.next());
            // The head ends with an empty line.
            lines.find(String::is_empty);
            let _ =
                peer.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    (format!("http://{address}"), heard)
}

async fn pull(registry: &Registry, model: &str) -> (u16, String) {
    let body = json!({"model": model, "stream": false, "insecure": true});
    let response = registry.post_json("/api/pull", &body).await;
    (response.status, response.text())
}

#[tokio::test]
async fn a_proxy_gets_names_and_no_private_addresses() {
    let (proxy, heard) = proxy();
    let options = Options::new().env("HTTP_PROXY", &proxy).env("NO_PROXY", "");
    let server = Folder::new().start(options.env("LODE_ALLOW_EGRESS", "10.1.0.0/16,192.168.7.7")).await;
    let registry = server.registry();
    for model in ["10.0.0.1/team/x", "169.254.169.254/team/x", "192.168.7.8/team/x", "100.64.0.1:8080/team/x"]
    {
        let (status, text) = pull(&registry, model).await;
        assert!(status == 403 && text.contains("--allow-egress"), "{model}: {text}");
    }
    assert_eq!(*heard.lock().unwrap(), [""; 0]);
    for host in ["registry.example", "10.1.2.3", "192.168.7.7:5000"] {
        let (status, text) = pull(&registry, &format!("{host}/team/x")).await;
        assert!(status == 404 && text.contains("file does not exist"), "{host}: {text}");
        let expect = format!("GET http://{host}/v2/team/x/manifests/latest HTTP/1.1");
        assert_eq!(heard.lock().unwrap().pop(), Some(expect));
    }
}
