//! The pages about models and repositories, as a browser gets them: search, filters, the model page with its card,
//! files, tensors, differences, and who sees what. The HTML is parsed, and must be free of errors.

use lode_tests::access::{PASSWORD, add_user, make_public, start_closed};
use lode_tests::artifact::{Image, referrer};
use lode_tests::browser::{Browser, form_from_page};
use lode_tests::checkpoint::demo;
use lode_tests::command::Lode;
use lode_tests::oci::{Registry, Response};
use lode_tests::server::{Options, Server};
use scraper::{Html, Selector};
use serde_json::{Value, json};

const CARD: &str = r#"---
license: apache-2.0
pipeline_tag: text-generation
language: [en, de]
tags: [tiny]
base_model: team/base
---
# A card

A model that answers questions about *itself*.

[the config](config.json), ![remote](https://example.com/pixel.png), ![chart](img/chart.png)

<script>alert(1)</script><img src=x onerror=alert(1)>
"#;
const PNG: &[u8] = b"\x89PNG\r\n\x1a\nnot really a picture";

/// A page that was parsed without errors.
struct Page {
    html: Html,
}

impl Page {
    fn parse(response: &Response) -> Page {
        let text = response.text();
        let html = Html::parse_document(&text);
        assert!(html.errors.is_empty(), "{:?}\n{text}", html.errors);
        let page = Page { html };
        for (selector, count) in
            [("h1", 1), ("main", 1), ("script", 1), ("style", 0), ("[style]", 0), ("[onclick]", 0)]
        {
            assert_eq!(page.all(selector).len(), count, "{selector}\n{text}");
        }
        let csp = response.header("content-security-policy").unwrap();
        assert!(csp.starts_with("default-src 'none'") && csp.contains("script-src 'self'"), "{csp}");
        assert!(!csp.contains("unsafe"), "{csp}");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
        page
    }

    /// The texts of the elements that a selector finds, with single spaces.
    fn all(&self, selector: &str) -> Vec<String> {
        let selector = Selector::parse(selector).unwrap();
        let text = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        self.html.select(&selector).map(|element| text(element.text().collect())).collect()
    }

    fn text(&self) -> String {
        self.all("body").concat()
    }

    /// The attributes of the elements that a selector finds.
    fn attributes(&self, selector: &str, name: &str) -> Vec<String> {
        let selector = Selector::parse(selector).unwrap();
        self.html.select(&selector).filter_map(|element| element.attr(name)).map(str::to_owned).collect()
    }

    #[track_caller]
    fn expect(&self, texts: &[&str]) {
        let all = self.text();
        for text in texts {
            assert!(all.contains(text), "no `{text}` in {all}");
        }
    }
}

/// A page as a browser asks for it.
async fn open(registry: &Registry, path: &str) -> Response {
    registry.send(registry.request("GET", path).header("accept", "text/html,*/*;q=0.8")).await
}

async fn page(registry: &Registry, path: &str) -> Page {
    Page::parse(&open(registry, path).await.expect(200))
}

/// Pushes the demo model with a card, twice: as it is, and quantised.
async fn push_models(server: &Server, lode: &Lode) {
    let folder = server.folder().path().join("model");
    std::fs::create_dir_all(folder.join("img")).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(demo().join(file), folder.join(file)).unwrap();
    }
    std::fs::write(folder.join("README.md"), CARD).unwrap();
    std::fs::write(folder.join("img/chart.png"), PNG).unwrap();
    let folder = folder.to_str().unwrap();
    lode.run(&["create", "team/mini:v1", folder]).await.expect_success();
    lode.run(&["create", "team/mini:q4", folder, "--quantize", "Q4_K_M"]).await.expect_success();
    lode.run(&["create", "other/deep/down/mini", folder, "--quantize", "int4"]).await.expect_success();
    // A request for one model reads it.
    for model in ["team/mini:v1", "team/mini:q4", "other/deep/down/mini"] {
        lode.run(&["show", model]).await.expect_success();
    }
}

#[tokio::test]
async fn people_find_a_model_and_look_into_it() {
    let server = Server::fresh().await;
    let (registry, lode) = (server.registry(), server.lode());
    let empty = page(&registry, "/").await;
    empty.expect(&["No models yet", "an OCI model registry and inference server"]);
    page(&registry, "/models").await.expect(&["There are no models yet."]);
    let api = page(&registry, "/-/api").await;
    api.expect(&[
        "PUT /lode/v1/workers/{id}/drain",
        "Milliseconds since 1970.",
        "Unknown fields are refused.",
    ]);
    push_models(&server, &lode).await;

    // Search and filters.
    let names = async |query: &str| page(&registry, &format!("/models{query}")).await.all(".list h3 a");
    assert_eq!(names("").await.len(), 2);
    assert_eq!(names("?sort=name").await, ["other/deep/down/mini", "team/mini:q4"]);
    assert_eq!(names("?q=TEAM/MINI").await, ["team/mini:q4"]);
    assert_eq!(names("?q=apache+itself&sort=name").await, ["other/deep/down/mini", "team/mini:q4"]);
    assert_eq!(names("?q=nothing-of-this").await, Vec::<String>::new());
    assert_eq!(names("?format=gguf").await, ["team/mini:q4"]);
    assert_eq!(names("?quant=int4").await, ["other/deep/down/mini"]);
    assert_eq!(names("?license=Apache-2.0&arch=llama&task=text-generation").await.len(), 2);
    assert_eq!(names("?base=team/base").await.len(), 2);
    assert_eq!(names("?max=1B").await.len(), 2);
    assert_eq!(names("?min=1B").await, Vec::<String>::new());
    assert_eq!(names("?fits=1GiB").await.len(), 2);
    assert_eq!(names("?fits=1MiB").await, Vec::<String>::new());
    // Names and values that try to be markup or SQL are text.
    for query in
        ["?q=%3Cscript%3E%25_%27%22%5C", "?format=%27+or+1%3D1--", "?after=1~x%27", "?sort=%00", "?q=%00"]
    {
        names(query).await;
    }
    assert_eq!(open(&registry, "/models?min=many").await.status, 400);
    let long = format!("?q={}", "x".repeat(10_000));
    names(&long).await;

    // The model's page.
    let overview = page(&registry, "/team/mini?tag=v1").await;
    overview.expect(&[
        "4.2M",
        "llama",
        "2,048 tokens",
        "BF16",
        "Apache-2.0",
        "text-generation",
        "Made from team/base",
    ]);
    let host = server.address.to_string();
    let commands = overview.all("[data-copy]").join("\n");
    for command in [
        format!("lode run {host}/team/mini:v1"),
        format!("ollama run --insecure {host}/team/mini:v1"),
        format!("curl http://{host}/v1/chat/completions"),
        format!("base_url=\"http://{host}/v1\""),
        format!("lode pull {host}/team/mini:v1 --to ./mini"),
        format!("export HF_ENDPOINT=http://{host}/hf"),
        "hf download team/mini --revision v1".to_owned(),
        "pipeline(\"text-generation\", model=\"team/mini\", revision=\"v1\")".to_owned(),
        "vllm serve team/mini --revision v1".to_owned(),
    ] {
        assert!(commands.contains(&command), "no `{command}` in {commands}");
    }
    let card = overview.all(".card").concat();
    assert!(card.contains("A model that answers questions about itself."), "{card}");
    assert_eq!(
        overview.attributes(".card a", "href")[..2],
        ["/team/mini/-/blob/v1/config.json", "https://example.com/pixel.png"]
    );
    assert_eq!(
        overview.attributes(".card img", "src"),
        ["/team/mini/-/raw/v1/img/chart.png", "/team/mini/-/raw/v1/x"]
    );
    assert!(overview.attributes(".card img", "onerror").is_empty());

    // Files, of which a checkpoint's weights are assembled from tensors.
    let tree = page(&registry, "/team/mini/-/tree/v1").await;
    tree.expect(&["README.md", "model.safetensors", "img/chart.png"]);
    let config = page(&registry, "/team/mini/-/blob/v1/config.json").await;
    config.expect(&["LlamaForCausalLM"]);
    assert!(config.all("pre.file .hl-name").contains(&"\"architectures\"".to_owned()));
    let weights = page(&registry, "/team/mini/-/blob/v1/model.safetensors").await;
    weights.expect(&["This file is not text.", "Tensors of the model"]);
    let weights = registry.get("/team/mini/-/raw/v1/model.safetensors").await.expect(200);
    assert!(weights.body == std::fs::read(demo().join("model.safetensors")).unwrap());
    let download = registry.get("/team/mini/-/raw/v1/README.md").await.expect(200);
    assert_eq!(download.text(), CARD);
    assert_eq!(download.header("content-type"), Some("application/octet-stream"));
    assert!(download.header("content-disposition").unwrap().starts_with("attachment"));
    assert!(download.header("content-security-policy").unwrap().contains("sandbox"));
    let picture = registry.get("/team/mini/-/raw/v1/img/chart.png").await.expect(200);
    assert_eq!(picture.header("content-type"), Some("image/png"));
    for missing in
        ["/team/mini/-/blob/v1/../../x", "/team/mini/-/raw/v1/none", "/team/mini/-/raw/v1/%2e%2e%2fx"]
    {
        assert_eq!(open(&registry, missing).await.status, 404, "{missing}");
    }

    // Tensors, differences, lineage.
    let tensors = page(&registry, "/team/mini/-/tensors/v1").await;
    tensors.expect(&[
        "model.layers.0..3.mlp.up_proj.weight",
        "768 × 256",
        "38 tensors",
        "models with the same bytes",
    ]);
    let filtered = page(&registry, "/team/mini/-/tensors/v1?q=layers.2.mlp").await;
    assert_eq!(filtered.all("tbody tr").len(), 3);
    assert_eq!(filtered.all("tbody td:last-child"), [""; 3]);
    // The other model is quantised, but for its norms.
    let norms = page(&registry, "/team/mini/-/tensors/v1?q=layers.2.input_layernorm").await;
    assert_eq!(norms.all("tbody td:last-child"), ["other/deep/down/mini"]);
    let begin = registry.get("/team/mini/-/diff?from=v1&to=q4").await.expect(303);
    page(&registry, begin.header("location").unwrap()).await.expect(&[
        "38 tensors",
        "Q6_K 4096 × 256",
        "model.layers.3",
    ]);
    let relatives = page(&registry, "/team/mini/-/lineage?tag=v1").await;
    relatives.expect(&["team/base", "other/deep/down/mini:latest"]);
    page(&registry, "/team/mini/-/diff/v1..other/deep/down/mini:latest").await.expect(&["Shared"]);
    let tags = page(&registry, "/team/mini/-/tags").await;
    assert_eq!(tags.all("tbody th a"), ["q4", "v1"]);
    tags.expect(&[&format!("{host}/team/mini:v1")]);

    // Programs keep their responses.
    assert_eq!(registry.get("/").await.text(), "Ollama is running");
    let missing = registry.send(registry.request("GET", "/none").header("accept", "application/json")).await;
    assert_eq!((missing.status, missing.header("content-type")), (404, Some("application/json")));
}

#[tokio::test]
async fn people_try_a_model_without_scripts() {
    let server = Server::fresh_with_worker().await;
    let (registry, lode) = (server.registry(), server.lode());
    push_models(&server, &lode).await;
    let path = "/team/mini/-/try?tag=v1";
    page(&registry, path).await.expect(&["Message", "JSON schema of the response"]);
    let send = async |path: &str, fields: &[(&str, &str)], status: u16| {
        let request = registry.request("POST", path).header("accept", "text/html");
        Page::parse(&registry.send(form_from_page(request, fields)).await.expect(status))
    };

    // A conversation: the form carries it from one page to the next.
    let calm = [("temperature", "0"), ("tokens", "16")];
    let first =
        send(path, &[&[("message", "What is <b>Lode</b>?"), ("history", "[]")], &calm[..]].concat(), 200)
            .await;
    assert_eq!(first.all(".turns h2"), ["You", "team/mini:v1"]);
    let texts = first.all(".turns .text");
    assert_eq!(texts[0], "What is <b>Lode</b>?");
    assert!(!texts[1].is_empty());
    first.expect(&["per second"]);
    let history = first.attributes("[name=history]", "value").remove(0);
    let body = json!({"model": "team/mini:v1", "messages": [{"role": "user", "content": "What is <b>Lode</b>?"}],
        "stream": false, "options": {"temperature": 0, "num_predict": 16}});
    let answer = registry.post_json("/lode/v1/chat", &body).await.expect(200).json();
    assert_eq!(
        texts[1],
        answer["message"]["content"].as_str().unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    );
    let second = send(path, &[&[("message", "And?"), ("history", &history)], &calm[..]].concat(), 200).await;
    assert_eq!(second.all(".turns .text")[..3], [texts[0].clone(), texts[1].clone(), "And?".to_owned()]);

    // A response that follows a schema.
    let schema = r#"{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}"#;
    let fields = [("message", "Count"), ("history", "[]"), ("schema", schema), ("tokens", "64")];
    let counted = send(path, &fields, 200).await.all(".turns .text").remove(1);
    // -0 is an integer to a schema, and a fraction to serde_json.
    let number = serde_json::from_str::<Value>(&counted).unwrap()["n"].as_f64();
    assert!(number.is_some_and(|number| number.fract() == 0.0), "{counted}");

    // A text that the model continues.
    let path = "/team/mini/-/try?tag=v1&mode=complete";
    let continued = send(path, &[&[("message", "In the beginning")], &calm[..]].concat(), 200).await;
    let text = continued.all("#message").remove(0);
    assert!(text.starts_with("In the beginning") && text.len() > 20, "{text}");

    // What is wrong is said on the page, and what was typed stays.
    let path = "/team/mini/-/try?tag=v1";
    for (field, value, problem) in [
        ("temperature", "hot", "Temperature: expected a number from 0 to 2"),
        ("tokens", "0", "Length: expected a number of tokens from 1 to 4096"),
        ("schema", "{", "Schema: "),
        ("tools", "{}", "Tools: expected a JSON list"),
        ("history", "[{", "The conversation could not be read"),
    ] {
        let page = send(path, &[(field, value), ("message", "stay"), ("history", "[]")], 400).await;
        page.expect(&[problem]);
        assert_eq!(page.all("#message"), ["stay"]);
    }
    send(path, &[("message", " "), ("history", "[]")], 400).await.expect(&["Type a text first."]);
    let long = "x ".repeat(40 << 10);
    registry.send(form_from_page(registry.request("POST", path), &[("message", &long)])).await.expect(413);
    // Another site's page sends nothing.
    let foreign = registry.request("POST", path).header("sec-fetch-site", "cross-site").body("message=x");
    registry.send(foreign).await.expect(403);
}

#[tokio::test]
async fn owners_change_the_settings_of_a_repository() {
    let server = start_closed(Options::new()).await;
    let (registry, admin) = (server.registry(), server.lode());
    push_models(&server, &admin).await;
    for name in ["carol", "dave"] {
        add_user(&admin, name).await;
    }
    let boss = Browser::sign_in(registry.clone(), "admin", PASSWORD).await;
    let carol = Browser::sign_in(registry.clone(), "carol", PASSWORD).await;
    let path = "/team/mini/-/settings";
    let new = Page::parse(&boss.get(path).await.expect(200));
    new.expect(&["As team/*, which is private", "No account has a role here."]);

    // Who may not read the repository, and who may and does not own it, get the page of a missing one.
    let hidden = async || {
        let missing = carol.get("/team/none/-/settings").await.expect(404).text().replace("none", "mini");
        assert_eq!(carol.get(path).await.expect(404).text(), missing);
        carol.post(path, &[("change", "visibility"), ("visibility", "public")]).await.expect(404);
    };
    hidden().await;
    boss.post(path, &[("change", "visibility"), ("visibility", "internal")]).await.expect(303);
    assert!(!carol.get("/team/mini").await.expect(200).text().contains("/-/settings"));
    hidden().await;

    // An owner has the page.
    boss.post(path, &[("change", "grant"), ("subject", "carol"), ("role", "own")]).await.expect(303);
    assert!(carol.get("/team/mini").await.expect(200).text().contains("/-/settings"));
    carol.post(path, &[("change", "grant"), ("subject", "dave"), ("role", "write")]).await.expect(303);
    let page = Page::parse(&carol.get(path).await.expect(200));
    page.expect(&["dave", "write", "carol", "own"]);
    assert_eq!(page.attributes("option[selected]", "value"), ["internal"]);
    let remove = [("change", "remove"), ("subject", "dave"), ("confirmed", "yes")];
    let asked = Page::parse(&carol.post(path, &remove[..2]).await.expect(200));
    asked.expect(&["Remove dave from team/mini?", "Nothing is changed yet."]);
    carol.post(path, &remove).await.expect(303);
    assert!(!Page::parse(&carol.get(path).await).text().contains("dave"));

    // What cannot be done is said on the page.
    for (fields, status, text) in [
        (
            &[("change", "grant"), ("subject", "nobody"), ("role", "read")][..],
            404,
            "no account or group is called",
        ),
        (&[("change", "grant"), ("subject", "dave"), ("role", "king")], 400, "`king` is not a role"),
        (&[("change", "visibility"), ("visibility", "")], 400, "is not a visibility"),
        (&remove, 404, "has no role on"),
        (&[("change", "all")], 400, "change must be"),
    ] {
        let response = boss.post(path, fields).await.expect(status);
        assert!(Page::parse(&response).all("[role=alert]")[0].contains(text), "{text}");
    }
    let anonymous = registry.send(registry.request("GET", path)).await.expect(303);
    assert!(anonymous.header("location").unwrap().starts_with("/login?next="));
}

#[tokio::test]
async fn operators_see_the_server() {
    let server = start_closed(Options::new().worker()).await;
    let (registry, admin) = (server.registry(), server.lode());
    push_models(&server, &admin).await;
    add_user(&admin, "carol").await;
    let boss = Browser::sign_in(registry.clone(), "admin", PASSWORD).await;
    let carol = Browser::sign_in(registry.clone(), "carol", PASSWORD).await;
    let page = Page::parse(&boss.get("/-/admin").await.expect(200));
    page.expect(&["Database", "sqlite", "Free for data", "ready", "No job is waiting"]);
    let id = page.attributes("tbody [name=id]", "value").remove(0);
    let change = async |browser: &Browser, change: &str, status: u16| {
        browser.post("/-/admin/workers", &[("id", &id), ("change", change)]).await.expect(status)
    };
    change(&boss, "drain", 303).await;
    Page::parse(&boss.get("/-/admin").await).expect(&["drained", "Resume"]);
    let try_it = async || boss.post("/team/mini/-/try?tag=v1", &[("message", "Hi"), ("tokens", "4")]).await;
    Page::parse(&try_it().await.expect(503)).expect(&["draining"]);
    change(&boss, "resume", 303).await;
    try_it().await.expect(200);
    change(&boss, "stop", 400).await;

    // Others do not see it, and have no link to it.
    change(&carol, "drain", 403).await;
    Page::parse(&carol.get("/-/admin").await.expect(403));
    assert!(!carol.get("/models").await.text().contains("/-/admin"));
    let visitor = open(&registry, "/-/admin").await.expect(303);
    assert_eq!(visitor.header("location"), Some("/login?next=%2F%2D%2Fadmin"));
    assert!(boss.get("/models").await.text().contains("/-/admin"));
}

#[tokio::test]
async fn images_and_artifacts_have_pages_too() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let image = Image::random(1, 2, 1000);
    let digest = image.push(&registry, "images/app", "v1").await;
    let subject: Value =
        json!({"mediaType": lode_tests::oci::IMAGE_MANIFEST, "digest": digest, "size": image.manifest.len()});
    let signature = referrer(
        &subject,
        Some("application/vnd.dev.sigstore.bundle.v0.3+json"),
        &json!({"note": "<b>signed</b>"}),
    );
    let by_digest = signature.digest();
    signature.push(&registry, "images/app", &by_digest).await;
    let titled = json!({"annotations": {"org.opencontainers.image.title": "An <i>artifact</i>",
        "org.opencontainers.image.licenses": "MIT"}});
    Image::of(b"{}".to_vec(), vec![b"x".to_vec()], &titled).push(&registry, "images/notes", "latest").await;
    server.lode().run(&["show", "images/notes"]).await;

    let overview = page(&registry, "/images/app").await;
    overview.expect(&["Signature attached", "docker pull", "2", "No model card."]);
    page(&registry, "/images/app/-/referrers").await.expect(&["sigstore", "<b>signed</b>"]);
    page(&registry, "/images/app/-/tags").await.expect(&["v1", "Manifests without a tag"]);
    page(&registry, "/images/app/-/tree/v1").await.expect(&["2 files"]);
    page(&registry, "/images/notes").await;
    // The search lists them when it is asked for everything.
    let all = page(&registry, "/models?all=1&q=images&sort=name").await;
    assert_eq!(all.all(".list h3 a"), ["images/app", "images/notes"]);
    // A repository whose only tag is gone.
    registry.delete("/v2/images/notes/manifests/latest").await.expect(202);
    page(&registry, "/images/notes").await.expect(&["This repository has no tags."]);
}

#[tokio::test]
async fn results_come_in_pages() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let image = Image::random(7, 1, 100);
    for number in 0..30 {
        image.push(&registry, &format!("many/m{number:02}"), "latest").await;
    }
    for sort in ["name", "updated", "size", "parameters", "pulls", "relevance"] {
        let (mut seen, mut next) = (Vec::new(), Some(format!("/models?all=1&q=many&sort={sort}")));
        while let Some(path) = next {
            let page = page(&registry, &path).await;
            seen.extend(page.all(".list h3 a"));
            next = page.attributes("a[rel=next]", "href").into_iter().next();
        }
        let mut names = seen.clone();
        names.sort();
        names.dedup();
        assert_eq!((seen.len(), names.len()), (30, 30), "{sort}");
    }
}

#[tokio::test]
async fn private_models_appear_to_those_who_may_read_them_only() {
    let server = start_closed(Options::new()).await;
    let (registry, admin) = (server.registry(), server.lode());
    push_models(&server, &admin).await;
    add_user(&admin, "carol").await;
    make_public(&server, "other/deep/down/mini").await;
    let carol = Browser::sign_in(registry.clone(), "carol", PASSWORD).await;
    let boss = Browser::sign_in(registry.clone(), "admin", PASSWORD).await;

    // A stranger, and a visitor without an account: hidden and missing are the same page.
    let normal = |text: String, name: &str| text.replace(name, "NAME");
    for path in [
        "",
        "/-/tags",
        "/-/tree/v1",
        "/-/blob/v1/config.json",
        "/-/raw/v1/config.json",
        "/-/tensors/v1",
        "/-/lineage",
        "/-/referrers",
        "/-/diff/v1..q4",
        "/-/try",
    ] {
        let hidden = open(&registry, &format!("/team/mini{path}")).await.expect(404);
        let missing = open(&registry, &format!("/team/none{path}")).await.expect(404);
        assert_eq!(normal(hidden.text(), "team/mini"), normal(missing.text(), "team/none"), "{path}");
        let hidden = carol.get(&format!("/team/mini{path}")).await.expect(404);
        let missing = carol.get(&format!("/team/none{path}")).await.expect(404);
        assert_eq!(normal(hidden.text(), "team/mini"), normal(missing.text(), "team/none"), "{path}");
        boss.get(&format!("/team/mini{path}")).await.expect(200);
    }
    Page::parse(&open(&registry, "/team/mini").await).expect(&["Page not found", "sign in"]);

    // Lists, counts, facets, relatives and what they share.
    let public = page(&registry, "/models?sort=name").await;
    assert_eq!(public.all(".list h3 a"), ["other/deep/down/mini"]);
    public.expect(&["1 model"]);
    for text in ["team/mini", "gguf", "Q4_K_M"] {
        assert!(!public.text().contains(text), "{text}");
    }
    const SHARED: &str = "/other/deep/down/mini/-/tensors/latest";
    for path in
        ["/", "/models?q=team&all=1", "/other/deep/down/mini/-/lineage", "/other/deep/down/mini", SHARED]
    {
        let page = page(&registry, path).await;
        assert!(
            ["team/mini", "shared with others", "are stored once"]
                .iter()
                .all(|text| !page.text().contains(text)),
            "{path}: {}",
            page.text()
        );
    }
    let all = Page::parse(&boss.get("/models?sort=name").await.expect(200));
    assert_eq!(all.all(".list h3 a"), ["other/deep/down/mini", "team/mini:q4"]);
    Page::parse(&boss.get(SHARED).await.expect(200)).expect(&["all with team/mini", "are stored once"]);
    Page::parse(&boss.get("/other/deep/down/mini").await.expect(200))
        .expect(&["shared with others", "admin"]);
}
