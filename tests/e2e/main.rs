//! The end-to-end tests: real processes and sockets, one file per topic. `tests/run e2e` runs them against
//! the debug build, with `--long` the release build, or the program in LODE_BIN. As with any `cargo test`, a
//! word after `--` selects tests by name.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test and reports its line")]

mod accounts;
mod agreement;
mod anthropic;
mod attached_worker;
mod bad_input;
mod bad_models;
mod chat;
mod contents;
mod converted;
mod copies;
mod cosign;
mod demo;
mod docker;
mod errors;
mod expiry;
mod families;
mod faults;
mod fp8;
mod full_disk;
mod gc;
mod gguf;
mod guard;
mod hf_clients;
mod hf_import;
mod hostile_bodies;
mod hostile_text;
mod hub;
mod import;
mod inference;
mod kill;
mod layouts;
mod manifests;
mod memory;
mod mixed_load;
mod modelfile;
mod moving;
mod nodes;
mod ollama;
mod onnx;
mod oras;
mod other_clients;
mod outgoing;
mod pages;
mod postgres;
mod private_clients;
mod private_models;
mod prompts;
mod publishers;
mod push_pull;
mod python;
mod quantised;
mod redirect;
mod referrers;
mod replica_kill;
mod replicas;
mod rerank;
mod responses;
mod resume;
mod rolling;
mod serving;
mod shells;
mod single_sign_on;
mod skopeo;
mod soak;
mod start_stop;
mod steps;
mod tags;
mod text;
mod untrusted_names;
mod visibility;
mod wire;

#[test]
fn no_file_is_forgotten() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e");
    let here = include_str!("main.rs");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.strip_suffix(".rs").unwrap_or_else(|| panic!("{name} is not a module"));
        assert!(
            module == "main" || here.contains(&format!("\nmod {module};\n")),
            "main.rs does not declare `mod {module}`"
        );
    }
}

#[test]
fn an_address_is_found_in_server_output() {
    let check = |text: &str, expect: Option<&str>| {
        assert_eq!(lode_tests::server::address_in(text), expect.map(|a| a.parse().unwrap()), "{text}");
    };
    check("listening on http://127.0.0.1:41234\n", Some("127.0.0.1:41234"));
    check("listening on http://127.0.0.1:41234.\n", Some("127.0.0.1:41234"));
    check("listening on http://127.0.0.1:412", None); // the line may be incomplete
    check("listening on http://127.0.0.1:0\nlistening on http://[::1]:80/ ", Some("[::1]:80"));
    check(
        "no response from http://127.0.0.1:1: refused\nlistening on http://127.0.0.1:80\n",
        Some("127.0.0.1:80"),
    );
    check("listening on https://127.0.0.1:443\n", Some("127.0.0.1:443"));
    check("nothing here", None);
}
