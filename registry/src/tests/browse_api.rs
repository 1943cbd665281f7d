//! What pages show, for programs: the search and the files of a model.

use serde_json::{Value, json};

use super::access::{PASSWORD, basic};
use super::create::safetensors;
use super::hf_write::{CONFIG, file};
use super::{App, TestResponse};

const SEARCH: &str = "/lode/v1/search";

/// A server with three models, the last two of a private namespace, and the user `reader` of that namespace.
async fn app() -> App {
    let app = App::new().await;
    for (name, card) in [
        (
            "open/small",
            "---\nlicense: mit\npipeline_tag: text-generation\n---\n# Small\n\nAnswers questions.\n",
        ),
        ("team/large", "---\nlicense: apache-2.0\nbase_model: open/small\n---\n# Large\n"),
        ("team/other", "# Other\n"),
    ] {
        app.create_repository(name).await;
        let weights = safetensors("model.embed_tokens.weight", 8);
        let files = [
            file("README.md", card.as_bytes()),
            file("config.json", CONFIG),
            file("model.safetensors", &weights),
            file("extra/a b.txt", b"text"),
        ];
        app.committed(name, &files).await;
    }
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    app.show("open/small", "public").await;
    app.user("reader").await;
    app.grant("team/*", "reader", "read").await;
    app
}

fn names(found: &TestResponse) -> Vec<String> {
    assert_eq!(found.status, 200, "{}", found.text());
    let names = found.json()["repositories"].as_array().unwrap().clone();
    names.iter().map(|hit| hit["repository"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_search_finds_what_the_caller_may_read() {
    let app = app().await;
    let reader = basic("reader", PASSWORD);
    for (query, expect) in [
        ("", vec!["team/other", "team/large", "open/small"]),
        ("?sort=name", vec!["open/small", "team/large", "team/other"]),
        ("?q=answers", vec!["open/small"]),
        ("?q=team/", vec!["team/other", "team/large"]),
        ("?license=MIT", vec!["open/small"]),
        ("?task=text-generation&sort=name", vec!["open/small", "team/large", "team/other"]),
        ("?task=fill-mask", vec![]),
        ("?base=open/small", vec!["team/large"]),
        ("?format=safetensors&arch=llama&sort=name", vec!["open/small", "team/large", "team/other"]),
        ("?format=gguf", vec![]),
        ("?min=1B", vec![]),
        ("?fits=1GiB&max=1B&q=large", vec!["team/large"]),
    ] {
        let mut found = names(&app.get_as(&reader, &format!("{SEARCH}{query}")).await);
        if query.contains("q=") {
            // The order of equal names is that of their times.
            found.sort_by(|a, b| b.cmp(a));
        }
        assert_eq!(found, expect, "{query}");
    }
    // Others find, and count, what is public.
    let found = app.get(SEARCH).await;
    assert_eq!((names(&found), &found.json()["count"]), (vec!["open/small".to_owned()], &json!(1)));
    assert_eq!(names(&app.get(&format!("{SEARCH}?q=large")).await), [""; 0]);
}

#[tokio::test]
async fn a_result_has_the_facts_of_its_model() {
    let app = app().await;
    let found = app.get(&format!("{SEARCH}?q=small")).await.json();
    let hit = &found["repositories"][0];
    for (name, expect) in [
        ("tag", json!("latest")),
        ("format", json!("safetensors")),
        ("architecture", json!("llama")),
        ("license", json!("MIT")),
        ("task", json!("text-generation")),
        ("description", json!("Answers questions.")),
        ("tags", json!(1)),
        ("pulls_last_30_days", json!(0)),
    ] {
        assert_eq!(hit[name], expect, "{name}: {hit}");
    }
    let details = app.get("/lode/v1/models/open/small/latest").await.json();
    for name in ["license", "task", "description", "context_length", "bases"] {
        assert_eq!(details[name], hit[name], "{name}: {details}");
    }
    let facets = found["facets"].as_array().unwrap();
    let facet = |name: &str| facets.iter().find(|facet| facet["name"] == name).unwrap()["values"].clone();
    assert_eq!(facet("base"), json!([]));
    assert_eq!(facet("format"), json!([{"filter": {"format": "safetensors"}, "count": 1}]));
    let of_parameters = facet("parameters");
    assert_eq!(of_parameters[0], json!({"filter": {"max": "1B"}, "count": 1}));
    assert_eq!(of_parameters[1]["filter"], json!({"min": "1B", "max": "4B"}));
    assert_eq!(facet("memory")[3], json!({"filter": {"fits": "24GiB"}, "count": 1}));
    // Each filter can be sent back, and finds as many as it says.
    for value in facets.iter().flat_map(|facet| facet["values"].as_array().unwrap()) {
        let filter = value["filter"].as_object().unwrap().iter();
        let query: Vec<String> = filter.map(|(k, v)| format!("{k}={}", v.as_str().unwrap())).collect();
        let found = app.get(&format!("{SEARCH}?{}", query.join("&"))).await;
        assert_eq!(found.json()["count"], value["count"], "{value}");
    }
}

#[tokio::test]
async fn pages_of_results_follow_each_other() {
    let app = app().await;
    let reader = basic("reader", PASSWORD);
    for sort in ["name", "updated", "size", "parameters", "pulls", "relevance"] {
        let mut next = Some(format!("{SEARCH}?q=&sort={sort}&n=1"));
        let mut all = Vec::new();
        while let Some(path) = next {
            let page = app.get_as(&reader, &path).await;
            assert_eq!(names(&page).len(), 1, "{path}");
            assert_eq!(page.json()["count"], 3, "{path}");
            all.extend(names(&page));
            next = page.next_page();
            assert!(all.len() <= 3, "{path}");
        }
        all.sort();
        assert_eq!(all, ["open/small", "team/large", "team/other"], "{sort}");
    }
    for (query, text) in [
        ("sort=best", "expected relevance, updated"),
        ("min=many", "a number such as 7B"),
        ("fits=much", "a size such as 24GiB"),
        ("context=-1", "a number such as"),
        ("last=1", "the address of a next page"),
        ("n=-1", "a non-negative number"),
    ] {
        let refused = app.get(&format!("{SEARCH}?{query}")).await;
        assert!(refused.status == 400 && refused.text().contains(text), "{query}: {}", refused.text());
    }
    let long = app.get(&format!("{SEARCH}?q={}&license={}", "x%20".repeat(2000), "%00".repeat(1000))).await;
    assert_eq!(names(&long), [""; 0]);
}

#[tokio::test]
async fn files_are_listed_with_their_addresses() {
    let app = app().await;
    let page = app.get("/lode/v1/files/open/small/latest").await;
    assert_eq!(page.status, 200, "{}", page.text());
    let list = page.json();
    let files = list["files"].as_array().unwrap();
    let paths: Vec<&str> = files.iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["README.md", "config.json", "extra/a b.txt", "model.safetensors"]);
    for file in files {
        let content = app.get(file["url"].as_str().unwrap()).await;
        assert_eq!((content.status.as_u16(), json!(content.body.len())), (200, file["size_bytes"].clone()));
        if let Some(digest) = file["digest"].as_str() {
            assert_eq!(digest, lode_model::digest::Digest::sha256(&content.body).as_str(), "{file}");
        }
    }
    // In pages, which stay those of the manifest when the tag moves.
    let mut next = Some("/lode/v1/files/open/small/latest?n=1".to_owned());
    let mut all: Vec<Value> = Vec::new();
    while let Some(path) = next {
        let page = app.get(&path).await;
        next = page.next_page();
        assert!(next.as_ref().is_none_or(|next| next.contains(list["digest"].as_str().unwrap())));
        all.extend(page.json()["files"].as_array().unwrap().clone());
    }
    assert_eq!(&all, files);
    for (path, status) in [
        ("/lode/v1/files/open/small/none", 404),
        ("/lode/v1/files/open/none/latest", 401),
        ("/lode/v1/files/team/large/latest", 401),
        ("/lode/v1/files/open/small/UPPER%20CASE", 400),
    ] {
        assert_eq!(app.get(path).await.status, status, "{path}");
    }
    let admin = basic("admin", PASSWORD);
    for path in ["pulls", "retention", "tags", "manifests", "history"] {
        let missing = app.get_as(&admin, &format!("/lode/v1/repositories/open/none/{path}")).await;
        assert_eq!(missing.status, 404, "{path}: {}", missing.text());
    }
}
