//! Listing tags and repositories: byte order, pages, and edge cases of `n` and `last`.
//! The conformance program tests little of this.

use lode_tests::artifact::Image;
use lode_tests::checkpoint::demo;
use lode_tests::oci::{IMAGE_MANIFEST, Registry, strings};
use lode_tests::server::Server;

async fn page(registry: &Registry, path: &str) -> (Vec<String>, Option<String>) {
    let response = registry.get(path).await.expect(200);
    let key = if path.contains("_catalog") { "repositories" } else { "tags" };
    let next = response.header("link").map(|link| {
        let (target, rel) = link.split_once('>').unwrap();
        assert!(rel.contains("rel=\"next\""), "{link}");
        target.trim_start_matches('<').to_owned()
    });
    (strings(&response.json()[key]), next)
}

#[tokio::test]
async fn tags_come_in_byte_order_and_in_pages() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let image = Image::random(1, 1, 10);
    image.push(&registry, "list", "Zeta").await;
    for tag in ["alpha", "_x", "v1.10", "v1.9", "v1.2", "Alpha", "a-b", "a.b", "10", "9"] {
        registry.manifest_put("list", tag, IMAGE_MANIFEST, &image.manifest).await.expect(201);
    }
    let all = ["10", "9", "Alpha", "Zeta", "_x", "a-b", "a.b", "alpha", "v1.10", "v1.2", "v1.9"];
    let response = registry.get("/v2/list/tags/list").await.expect(200);
    assert_eq!(
        (response.json()["name"].as_str(), strings(&response.json()["tags"])),
        (Some("list"), all.map(str::to_owned).to_vec())
    );
    assert_eq!(response.header("link"), None);

    let expect = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    for (query, names, more) in [
        ("n=3", &all[..3], true),
        ("n=11", &all[..], false),
        ("n=10", &all[..10], true),
        ("n=1000000", &all[..], false),
        ("n=0", &all[..0], false),
        ("last=alpha", &all[8..], false),
        ("last=b", &all[8..], false), // `last` need not exist
        ("n=2&last=_x", &all[5..7], true),
        ("n=2&last=v1.10", &all[9..], false),
        ("last=zzz", &all[..0], false),
        ("n=2&last=zzz", &all[..0], false),
    ] {
        let (tags, next) = page(&registry, &format!("/v2/list/tags/list?{query}")).await;
        assert_eq!((tags, next.is_some()), (expect(names), more), "{query}");
    }
    // Following the links lists every tag once.
    let (mut seen, mut next) = (Vec::new(), Some("/v2/list/tags/list?n=4".to_owned()));
    while let Some(path) = next {
        let (tags, more) = page(&registry, &path).await;
        seen.extend(tags);
        next = more;
    }
    assert_eq!(seen, all);
    for bad in ["n=-1", "n=x", "n=", "n=1.5"] {
        let response = registry.get(&format!("/v2/list/tags/list?{bad}")).await;
        assert_eq!(response.status, 400, "{bad}: {}", response.text());
        assert!(response.code().is_some());
    }
    registry.get("/v2/nobody/tags/list").await.expect_error(404, "NAME_UNKNOWN");
}

#[tokio::test]
async fn a_repository_without_tags_lists_an_empty_array() {
    let server = Server::fresh().await;
    let registry = server.registry();
    Image::random(2, 1, 10).push(&registry, "bare", "only").await;
    registry.delete("/v2/bare/manifests/only").await.expect(202);
    let response = registry.get("/v2/bare/tags/list").await.expect(200);
    assert_eq!(response.json()["tags"], serde_json::json!([]));
}

#[tokio::test]
async fn the_catalog_pages_like_tags() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let image = Image::random(3, 1, 10);
    let names = ["a", "a/b", "a/b-c", "b", "team/model"];
    for name in names.iter().rev() {
        image.push(&registry, name, "v1").await;
    }
    assert_eq!(page(&registry, "/v2/_catalog").await, (names.map(str::to_owned).to_vec(), None));
    let (mut seen, mut next) = (Vec::new(), Some("/v2/_catalog?n=2".to_owned()));
    while let Some(path) = next {
        let (some, more) = page(&registry, &path).await;
        assert!(some.len() <= 2);
        seen.extend(some);
        next = more;
    }
    assert_eq!(seen, names);
}

#[tokio::test]
async fn a_command_reports_the_manifest_that_it_replaces() {
    let (server, other) = (Server::fresh().await, Server::fresh().await);
    let lode = server.lode();
    let write = |text: &str| std::fs::write(server.folder().path().join("note"), text).unwrap();
    let digest = async |server: &Server, name: &str| {
        let response = server.registry().manifest_get(name, "latest").await.expect(200);
        response.header("docker-content-digest").unwrap().to_owned()
    };
    let short = |digest: &str| digest.trim_start_matches("sha256:")[..12].to_owned();
    // A new tag, and a push of the same content, replace nothing.
    write("one");
    for _ in 0..2 {
        let pushed = lode.run(&["push", "note", "team/x"]).await.expect_success();
        assert!(!pushed.stderr.contains("replaced"), "{}", pushed.stderr);
    }
    lode.create("team/mini", &demo(), &[]).await.expect_success();
    let model = digest(&server, "team/mini").await;
    write("two");
    std::fs::write(server.folder().path().join("Modelfile"), "FROM team/mini\nSYSTEM brief\n").unwrap();
    let away = format!("{}/team/x", other.address);
    lode.run(&["push", "note", &away]).await.expect_success();
    for (server, name, args) in [
        (&server, "team/x", &["push", "note", "team/x"][..]),
        (&server, "team/x", &["cp", "team/mini", "team/x"]),
        (&server, "team/mini", &["create", "team/mini", "-f", "Modelfile"]),
        (&server, "team/mini", &["create", "team/mini", "--from", "team/mini", "--quantize", "int8"]),
        // The other server fetches the copy itself.
        (&other, "team/x", &["cp", "team/mini", &away]),
    ] {
        let before = digest(server, name).await;
        let done = lode.run(args).await.expect_success();
        let full = if server.address == other.address { away.as_str() } else { name };
        let expect = format!("replaced {} (`lode tag undo {full}:latest` restores it)\n", short(&before));
        assert_eq!(done.stderr.matches("replaced").count(), 1, "{args:?}: {}", done.stderr);
        assert!(done.stderr.contains(&expect), "{args:?}: {expect} {}", done.stderr);
    }
    lode.run(&["tag", "undo", &format!("{away}:latest")]).await.expect_success();
    let adapted = digest(&server, "team/mini").await;
    assert_ne!(adapted, model);
    // Back to the model before the quantisation, and then before the Modelfile.
    lode.run(&["tag", "undo", "team/mini"]).await.expect_success();
    assert_ne!(digest(&server, "team/mini").await, adapted);
}
