//! The search on both engines: the same results in the same order, rows that follow every change, and bounded plans.

use std::collections::BTreeSet;

use super::*;
use crate::auth::Visibility;
use crate::store::manifests::NewManifest;
use crate::store::removals::{RemovalCause, RemovalReason};
use crate::store::{Engine, FacetColumn, FactsRow, SearchContent, each_store, query_words};

/// A kind of model, which decides its facts.
#[derive(Clone, Copy, Debug)]
struct Model {
    format: &'static str,
    quantization: &'static str,
    parameters: u64,
    words: &'static str,
    bases: &'static [&'static str],
}

const SAFE: Model =
    Model { format: "safetensors", quantization: "BF16", parameters: 7_000_000_000, words: "", bases: &[] };
const SMALL: Model =
    Model { format: "gguf", quantization: "Q4_K_M", parameters: 7_000_000_000, words: "", bases: &[] };

fn digest_of(seed: &str) -> Digest {
    Digest::sha256(seed.as_bytes())
}

/// Stores a manifest whose content is `seed`, and moves a tag to it.
async fn push(store: &Store, repository: &str, tag: &str, seed: &str) {
    let (repository, digest): (Repository, Digest) = (repository.parse().unwrap(), digest_of(seed));
    let mut tx = store.begin().await.unwrap();
    tx.blob_insert(&digest, seed.len() as u64, digest.as_str(), None).await.unwrap();
    tx.link(&repository, &digest, 0).await.unwrap();
    tx.repository_lock_or_create(&repository).await.unwrap();
    let new =
        NewManifest { digest: &digest, media_type: "type", artifact_type: None, bytes: seed.as_bytes() };
    tx.manifest_insert(&repository, new).await.unwrap();
    tx.tag_put(&repository, &tag.parse().unwrap(), &digest, "server", None).await.unwrap();
    tx.commit().await.unwrap();
}

/// Records what a manifest is, as the index job does.
async fn index(store: &Store, seed: &str, model: Model, card: &str) {
    let row = ModelRow {
        format: model.format.to_owned(),
        architecture: Some("llama".to_owned()),
        parameters: Some(model.parameters),
        quantization: Some(model.quantization.to_owned()),
        size_bytes: model.parameters,
        tensor_count: 1,
        problem: None,
    };
    let facts = FactsRow {
        json: "{}".to_owned(),
        license: Some("MIT".to_owned()),
        task: None,
        context_length: Some(8192),
        words: model.words.to_owned(),
        card_words: card.to_owned(),
        bases: (!model.bases.is_empty()).then(|| format!("\n{}\n", model.bases.join("\n"))),
        tags: [model.format, model.quantization, "llama", "license:mit"].map(str::to_lowercase).into(),
    };
    store.model_put(&digest_of(seed), &row, &facts, &[]).await.unwrap();
}

async fn untag(store: &Store, repository: &str, tag: &str) {
    let repository: Repository = repository.parse().unwrap();
    let why =
        RemovalCause { reason: RemovalReason::Deleted, actor: "server".to_owned(), at: 1, undo_until: 1 };
    let mut tx = store.begin().await.unwrap();
    tx.repository_lock(&repository).await.unwrap();
    tx.tag_delete(&repository, &tag.parse().unwrap(), &why).await.unwrap();
    tx.commit().await.unwrap();
}

fn typed(text: &str) -> SearchFilter {
    let typed: Vec<String> = text.to_lowercase().split_whitespace().map(str::to_owned).collect();
    let in_name = typed.iter().filter(|part| part.contains('/')).cloned().collect();
    SearchFilter { typed, in_name, words: query_words(text), ..SearchFilter::default() }
}

/// All results, in pages of two, read in every way.
async fn find(store: &Store, visible: &ListFilter, filter: &SearchFilter, order: SearchOrder) -> Vec<String> {
    let planned = store.search_plan(filter.clone()).await.unwrap();
    let mut found = Vec::new();
    let ids = store.search_ids(visible, &planned).await.unwrap();
    let unplanned = store.search_ids(visible, filter).await.unwrap();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>(), unplanned.iter().collect::<BTreeSet<_>>(), "{filter:?}");
    for (filter, amount) in
        [(filter, Amount::Few), (&planned, Amount::Few), (&planned, Amount::of(&ids)), (filter, Amount::Many)]
    {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let rows = store.search(visible, filter, order, amount, after.as_ref(), 2).await.unwrap();
            let Some(last) = rows.last() else { break };
            after = Some(SearchCursor { key: last.sort_key, repository: last.repository.to_string() });
            all.extend(rows.iter().map(|row| format!("{}:{}", row.repository, row.tag)));
        }
        found.push(all);
        assert_eq!(ids.len(), found[0].len(), "{filter:?}");
    }
    let expect = found.remove(0);
    assert!(found.iter().all(|other| *other == expect), "{expect:?} {found:?} {filter:?} {order:?}");
    expect
}

async fn names(store: &Store, text: &str) -> Vec<String> {
    find(store, &ListFilter::All, &typed(text), SearchOrder::Relevance).await
}

#[tokio::test]
async fn words_find_the_same_on_both_engines() {
    each_store(async |store: Store| {
        for (repository, words, card) in [
            ("team/qwen2.5-7b", "chat apache-2.0", "fluent answers"),
            ("qwen/tiny", "größe 日本語", ""),
            ("other/qwen", "code and not near", "answers"),
            ("alpha", "", ""),
        ] {
            push(&store, repository, "latest", repository).await;
            index(&store, repository, Model { words, ..SAFE }, card).await;
        }
        for (query, expect) in [
            ("qwen", vec!["qwen/tiny", "other/qwen", "team/qwen2.5-7b"]),
            ("qwen2", vec!["team/qwen2.5-7b"]),
            ("QWEN2.5 7B", vec!["team/qwen2.5-7b"]),
            ("qwen25", vec!["team/qwen2.5-7b"]),
            ("answ", vec!["other/qwen", "team/qwen2.5-7b"]),
            ("gro", vec!["qwen/tiny"]),
            ("GRÖ", vec!["qwen/tiny"]),
            ("本", vec!["qwen/tiny"]),
            ("team/", vec!["team/qwen2.5-7b"]),
            ("other/qwen", vec!["other/qwen"]),
            ("qwen/q", vec![]),
            ("wen", vec![]),
            // Syntax of the engines is text.
            ("near", vec!["other/qwen"]),
            ("NOT near", vec!["other/qwen"]),
            ("\"qwen\" AND (code*)", vec!["other/qwen"]),
            ("qwen OR alpha", vec![]),
            ("words:qwen", vec![]),
            ("al* :* & | ! ' \\ -", vec!["alpha"]),
            ("'; drop table search; --", vec![]),
            ("%_\"'*()^{}", vec![]),
        ] {
            let expect: Vec<String> = expect.iter().map(|name| format!("{name}:latest")).collect();
            assert_eq!(names(&store, query).await, expect, "{query}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_result_is_the_kind_that_fits() {
    each_store(async |store: Store| {
        push(&store, "team/a", "latest", "a16").await;
        push(&store, "team/a", "q4", "a4").await;
        push(&store, "team/b", "v1", "b").await;
        push(&store, "team/image", "latest", "image").await;
        push(&store, "team/new", "latest", "new").await;
        index(&store, "a16", SAFE, "").await;
        index(&store, "a4", Model { parameters: 1_000_000_000, ..SMALL }, "").await;
        index(&store, "b", SMALL, "").await;
        index(&store, "image", Model { format: "", ..SAFE }, "").await;
        let find =
            async |filter: SearchFilter| find(&store, &ListFilter::All, &filter, SearchOrder::Name).await;
        let all = SearchFilter::default();
        assert_eq!(find(all.clone()).await, ["team/a:latest", "team/b:v1", "team/new:latest"]);
        let everything = SearchFilter { content: SearchContent::Everything, ..all.clone() };
        assert_eq!(find(everything).await.len(), 4);
        let gguf = SearchFilter { format: Some("gguf".to_owned()), ..all.clone() };
        assert_eq!(find(gguf.clone()).await, ["team/a:q4", "team/b:v1"]);
        let named = SearchFilter { format: Some("gguf".to_owned()), ..typed("team") };
        assert_eq!(find(named).await, ["team/a:q4", "team/b:v1"]);
        let licensed = SearchFilter { license: Some("mit".to_owned()), ..all.clone() };
        assert_eq!(find(licensed).await, ["team/a:latest", "team/b:v1"]);
        let small = SearchFilter { max_size_bytes: Some(2_000_000_000), ..all.clone() };
        assert_eq!(find(small.clone()).await, ["team/a:q4"]);
        let both = SearchFilter { quantization: Some("BF16".to_owned()), ..small };
        assert_eq!(find(both).await, Vec::<String>::new());
        let long = SearchFilter { min_context: Some(8193), ..all.clone() };
        assert_eq!(find(long).await, Vec::<String>::new());
        // The counts of a facet are those of the lists that its values lead to.
        let ranges = [(FacetColumn::Memory, vec![(0, 2_000_000_000), (0, 9_000_000_000)])];
        let ids = store.search_ids(&ListFilter::All, &gguf).await.unwrap();
        let facets = store.search_facets(&ListFilter::All, &gguf, &ranges, &ids).await.unwrap();
        let values = |column: FacetColumn| {
            facets
                .iter()
                .find(|(other, _)| *other == column)
                .map(|(_, counts)| counts.values.clone())
                .unwrap()
        };
        let pair = |value: &str, count: u64| (value.to_owned(), count);
        assert_eq!(values(FacetColumn::Format), [pair("gguf", 2), pair("safetensors", 1)]);
        assert_eq!(values(FacetColumn::Quantization), [pair("Q4_K_M", 2)]);
        assert_eq!(values(FacetColumn::Memory), [pair("0", 1), pair("1", 2)]);
        // A tag that moves, and one that is deleted.
        untag(&store, "team/a", "q4").await;
        assert_eq!(find(gguf.clone()).await, ["team/b:v1"]);
        push(&store, "team/b", "v1", "a16").await;
        assert_eq!(find(gguf).await, Vec::<String>::new());
        untag(&store, "team/b", "v1").await;
        assert_eq!(find(all).await, ["team/a:latest", "team/new:latest"]);
    })
    .await;
}

#[tokio::test]
async fn origins_are_counted_by_their_names_without_tags() {
    each_store(async |store: Store| {
        let all: [(&str, &[&str]); 4] = [
            ("team/a", &["org/base:v1", "org/other"]),
            ("team/b", &["org/base"]),
            ("team/c", &["registry.example:5000/org/base:v1"]),
            ("team/d", &[]),
        ];
        for (repository, bases) in all {
            push(&store, repository, "latest", repository).await;
            index(&store, repository, Model { bases, ..SAFE }, "").await;
        }
        let of = |base: &str| SearchFilter { base: Some(base.to_owned()), ..SearchFilter::default() };
        let expect = [("org/base", 2), ("org/other", 1), ("registry.example:5000/org/base", 1)];
        // A chosen origin does not hide the others.
        for filter in [SearchFilter::default(), of("org/other")] {
            let ids = store.search_ids(&ListFilter::All, &filter).await.unwrap();
            let facets = store.search_facets(&ListFilter::All, &filter, &[], &ids).await.unwrap();
            let (_, counts) = facets.iter().find(|(column, _)| *column == FacetColumn::Base).unwrap();
            let found: Vec<_> = counts.values.iter().map(|(name, count)| (name.as_str(), *count)).collect();
            assert_eq!(found, expect);
        }
        // Each leads to as many as it says, and a name with a tag to those that say the tag.
        let tagged = find(&store, &ListFilter::All, &of("org/base:v1"), SearchOrder::Name).await;
        assert_eq!(tagged, ["team/a:latest"]);
        for (base, count) in expect {
            let found = find(&store, &ListFilter::All, &of(base), SearchOrder::Name).await;
            assert_eq!(found.len() as u64, count, "{base}: {found:?}");
        }
        // Together with words. Typed text never matches the word of an origin.
        let origin = Some("org/base".to_owned());
        let both = |text: &str| SearchFilter { base: origin.clone(), ..typed(text) };
        for (filter, expect) in [(both("team b"), &["team/b:latest"][..]), (both("c"), &[]), (both("→"), &[])]
        {
            assert_eq!(find(&store, &ListFilter::All, &filter, SearchOrder::Relevance).await, expect);
        }
        for text in ["org", "org/base", "→org→base"] {
            assert_eq!(names(&store, text).await, Vec::<String>::new());
        }
        // Rows of an earlier version, whose words lack the origins.
        let (id, words) = match store.read() {
            Engine::Sqlite(_) => ("rowid", "'team'"),
            Engine::Postgres(_) => ("id", "cast('team' as tsvector)"),
        };
        for text in [
            format!("delete from search_words where {id} > 0"),
            format!("insert into search_words ({id}, words) select id, {words} from search"),
            "update search set word_form = 0".to_owned(),
        ] {
            let text = sqlx::AssertSqlSafe(text);
            query!(store.write(), c => sqlx::query(text).execute(c).await.map(drop)).unwrap();
        }
        assert_eq!(store.search_ids(&ListFilter::All, &of("org/base")).await.unwrap(), Vec::<i64>::new());
        let (stale, _) = store.search_stale("", 100).await.unwrap();
        assert_eq!(stale.len(), all.len());
        store.search_refresh_all(&stale).await.unwrap();
        assert_eq!(store.search_ids(&ListFilter::All, &of("org/base")).await.unwrap().len(), 2);
        assert!(store.search_stale("", 100).await.unwrap().0.is_empty());
    })
    .await;
}

#[tokio::test]
async fn hidden_repositories_are_in_no_result_and_no_count() {
    each_store(async |store: Store| {
        for repository in ["open/a", "open/secret", "closed/b"] {
            push(&store, repository, "latest", repository).await;
            index(&store, repository, Model { words: "shared", ..SAFE }, "").await;
        }
        let mut tx = store.begin().await.unwrap();
        tx.visibility_put(&"open/*".parse().unwrap(), Some(Visibility::Public)).await.unwrap();
        tx.visibility_put(&"open/secret".parse().unwrap(), Some(Visibility::Private)).await.unwrap();
        tx.commit().await.unwrap();
        let visible = ListFilter::Readable {
            visibility: Visibility::Public,
            subjects: Vec::new(),
            targets: Vec::new(),
        };
        for text in ["", "shared", "secret", "closed/"] {
            let shown = find(&store, &visible, &typed(text), SearchOrder::Name).await;
            let expect: &[&str] = if ["", "shared"].contains(&text) { &["open/a:latest"] } else { &[] };
            assert_eq!(shown, expect, "{text}");
            // Counted as of few, and as of many.
            let few = store.search_ids(&visible, &typed(text)).await.unwrap();
            let many = few.iter().copied().cycle().take(MAX_COUNT as usize + 1).collect();
            for ids in [few, many] {
                let facets = store.search_facets(&visible, &typed(text), &[], &ids).await.unwrap();
                let sum: u64 = facets.iter().flat_map(|(_, counts)| &counts.values).map(|(_, n)| n).sum();
                // Format, quantisation, architecture and licence.
                assert_eq!(sum, 4 * expect.len() as u64, "{text}");
            }
        }
        assert_eq!(
            find(&store, &ListFilter::None, &typed(""), SearchOrder::Name).await,
            Vec::<String>::new()
        );
    })
    .await;
}

/// The rows, without the number of the words, and what the words of each repository find.
async fn contents(store: &Store) -> Vec<String> {
    let rows: Vec<(String, i64, String, String, i64, i64, i64)> = query!(store.read(), c => sqlx::query_as(
        "select repository, position, tag, digest, updated_at, newest_at, indexed_at from search order by repository, position")
        .fetch_all(c).await)
    .unwrap();
    let mut all: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
    for word in ["r0", "r1", "r2", "one", "two", "three", "card"] {
        let everything = SearchFilter { content: SearchContent::Everything, ..typed(word) };
        all.push(format!("{word} {:?}", find(store, &ListFilter::All, &everything, SearchOrder::Name).await));
    }
    let count: (i64,) =
        query!(store.read(), c => sqlx::query_as("select count(*) from search_words").fetch_one(c).await)
            .unwrap();
    all.push(count.0.to_string());
    all
}

/// After random changes, the rows are those that a rebuild from tags and models gives.
#[tokio::test]
async fn rows_follow_every_change() {
    each_store(async |store: Store| {
        let mut seed = 7_u64;
        let mut draw = |limit: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % limit
        };
        for _ in 0..60 {
            let repository = format!("team/r{}", draw(3));
            let tag = ["latest", "v1", "v2"][draw(3) as usize];
            let manifest = format!("m{}", draw(5));
            match draw(4) {
                0 => untag(&store, &repository, tag).await,
                1 => {
                    let words = ["one", "two", "three"][draw(3) as usize];
                    let format = ["gguf", "safetensors", ""][draw(3) as usize];
                    index(&store, &manifest, Model { format, words, ..SMALL }, "card").await;
                }
                _ => push(&store, &repository, tag, &manifest).await,
            }
        }
        let followed = contents(&store).await;
        // What an earlier version leaves: rows that are missing, outdated, or of repositories without tags.
        for text in [
            "delete from search where repository = 'team/r1'",
            "update search set indexed_at = 1, newest_at = 1 where repository = 'team/r2'",
            "delete from search_words where 1 = 1",
            "delete from search where repository = 'team/r0'",
        ] {
            let text = match (text.contains("search_words"), store.read()) {
                (true, Engine::Sqlite(_)) => "delete from search_words where rowid > 0",
                _ => text,
            };
            query!(store.write(), c => sqlx::query(text).execute(c).await.map(drop)).unwrap();
        }
        let (stale, last) = store.search_stale("", 100).await.unwrap();
        assert!(!stale.is_empty() && last.is_some());
        // Interrupted after the first one, and done twice.
        store.search_refresh_all(&stale[..1]).await.unwrap();
        let (left, _) = store.search_stale("", 100).await.unwrap();
        assert_eq!(left.len(), stale.len() - 1);
        store.search_refresh_all(&stale).await.unwrap();
        store.search_refresh_all(&stale).await.unwrap();
        assert!(store.search_stale("", 100).await.unwrap().0.is_empty());
        assert_eq!(contents(&store).await, followed);
    })
    .await;
}

#[tokio::test]
async fn a_listing_of_representatives() {
    each_store(async |store: Store| {
        push(&store, "team/a", "latest", "a16").await;
        push(&store, "team/a", "q4", "a4").await;
        push(&store, "team-2/b", "v1", "b").await;
        push(&store, "team/new", "latest", "new").await;
        index(&store, "a16", SAFE, "").await;
        index(&store, "a4", SMALL, "").await;
        index(&store, "b", SMALL, "").await;
        let content = SearchContent::ReadModels;
        let all = SearchFilter { content, represents: true, ..SearchFilter::default() };
        let find = async |filter: SearchFilter| {
            let mut orders = Vec::new();
            for order in [SearchOrder::Name, SearchOrder::Created, SearchOrder::Newest] {
                let mut found = find(&store, &ListFilter::All, &filter, order).await;
                found.sort();
                orders.push(found);
            }
            assert_eq!((&orders[0], &orders[0]), (&orders[1], &orders[2]));
            orders.remove(0)
        };
        assert_eq!(find(all.clone()).await, ["team-2/b:v1", "team/a:latest"]);
        let author = |name: &str| SearchFilter { author: Some(name.to_owned()), ..all.clone() };
        assert_eq!(find(author("team")).await, ["team/a:latest"]);
        assert_eq!(find(author("tea")).await, Vec::<String>::new());
        let tagged = |tags: &[&str]| SearchFilter {
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..all.clone()
        };
        assert_eq!(find(tagged(&["gguf", "q4_k_m", "license:mit"])).await, ["team-2/b:v1"]);
        assert_eq!(find(tagged(&["safetensors", "q4_k_m"])).await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test]
async fn pulls_order_repositories_while_they_are_recent() {
    each_store(async |store: Store| {
        for repository in ["team/a", "team/b", "team/c"] {
            push(&store, repository, "latest", repository).await;
            push(&store, repository, "q4", &format!("{repository}4")).await;
            index(&store, repository, SAFE, "").await;
            index(&store, &format!("{repository}4"), SMALL, "").await;
        }
        let name = |text: &str| -> Repository { text.parse().unwrap() };
        let order = async || {
            let gguf = SearchFilter { format: Some("gguf".to_owned()), ..SearchFilter::default() };
            let found = find(&store, &ListFilter::All, &gguf, SearchOrder::Pulls).await;
            let all = find(&store, &ListFilter::All, &SearchFilter::default(), SearchOrder::Pulls).await;
            assert_eq!(found.join(" ").replace("q4", "latest"), all.join(" "));
            all.iter().map(|found| found["team/".len()..=5].to_owned()).collect::<String>()
        };
        let totals = async |repository: &str| {
            let PullTotals { recent, all_time } = store.pull_totals(&name(repository)).await.unwrap();
            (recent, all_time)
        };
        assert_eq!(order().await, "abc");
        // Counts of several replicas add up. A deleted repository is skipped.
        let (one, other) = (
            [(name("team/b"), 3), (name("gone"), 5), (name("team/c"), 1)],
            [(name("team/c"), 1), (name("team/b"), 4)],
        );
        let (one, other) = tokio::join!(store.pulls_add(&one), store.pulls_add(&other));
        one.and(other).unwrap();
        assert_eq!(
            (order().await, totals("team/b").await, totals("gone").await),
            ("bca".to_owned(), (7, 7), (0, 0))
        );
        // A push keeps them.
        push(&store, "team/b", "v2", "team/c").await;
        assert_eq!(
            (order().await, store.search_stale("", 100).await.unwrap().0),
            ("bca".to_owned(), Vec::new())
        );

        // A month later they are not recent.
        let text = "update pull_counts set day = day - 30 where repository = 'team/b'";
        query!(store.write(), c => sqlx::query(text).execute(c).await.map(drop)).unwrap();
        assert_eq!(totals("team/b").await, (0, 7));
        let (stale, _) = store.search_stale("", 100).await.unwrap();
        assert_eq!(stale, [name("team/b")]);
        store.search_refresh_all(&stale).await.unwrap();
        assert_eq!(order().await, "cab");
        // Old days are deleted in batches.
        let today = crate::store::today();
        assert_eq!(store.pull_days(&name("team/b"), today - 31).await.unwrap(), [(today - 30, 7)]);
        assert_eq!(store.pulls_expire(today - 30, 1).await.unwrap(), 0);
        assert_eq!(store.pulls_expire(today + 1, 1).await.unwrap(), 1);
        assert_eq!((totals("team/b").await, totals("team/c").await), ((0, 7), (2, 2)));
        assert_eq!(store.pulls_expire(today + 1, 10).await.unwrap(), 1);
        assert_eq!(totals("team/c").await, (0, 2));
    })
    .await;
}

/// The plan of a statement, a step in each line. Postgres uses an index wherever it can: it would scan tables
/// that are as small as these.
async fn plan(store: &Store, statement: &str, parameters: Vec<Parameter>) -> String {
    macro_rules! bound {
        ($text:expr) => {{
            let mut query = sqlx::query_as(AssertSqlSafe($text)).persistent(false);
            for parameter in parameters {
                query = match parameter {
                    Parameter::Text(value) => query.bind(value),
                    Parameter::Number(value) => query.bind(value),
                };
            }
            query
        }};
    }
    match store.read() {
        Engine::Sqlite(read) => {
            let steps: Vec<(i64, i64, i64, String)> =
                bound!(format!("explain query plan {statement}")).fetch_all(read).await.unwrap();
            steps.into_iter().map(|(.., step)| step + "\n").collect()
        }
        Engine::Postgres(pool) => {
            let mut tx = pool.begin().await.unwrap();
            sqlx::query("set local enable_seqscan = off").execute(&mut *tx).await.unwrap();
            let steps: Vec<(String,)> =
                bound!(format!("explain {statement}")).fetch_all(&mut *tx).await.unwrap();
            tx.rollback().await.unwrap();
            steps.into_iter().map(|(step,)| step + "\n").collect()
        }
    }
}

/// Each table is read by an index; what is scanned is the outcome of such a read.
fn assert_no_scan(plan: &str) {
    let intermediate =
        ["below", "f", "fit", "found", "few", "n", "r", "json_each", "(", "CONSTANT", "v", "g"];
    for step in plan.lines().map(str::trim_start) {
        let indexed = ["USING INDEX", "VIRTUAL TABLE", "USING COVERING INDEX"];
        let scanned = step.strip_prefix("SCAN ").filter(|_| indexed.iter().all(|part| !step.contains(part)));
        let table = scanned.map(|rest| rest.split([' ', '-']).next().unwrap_or_default());
        let is_bounded = table.is_none_or(|table| intermediate.contains(&table) || table.starts_with('('));
        assert!(is_bounded && !step.contains("Seq Scan"), "{step}\n{plan}");
    }
    // The kinds of a repository are found by its name or number, and not by a fact that they share with others.
    let others = plan.replace("SEARCH x USING INDEX search_facts_by_id", "");
    assert!(!others.contains("SEARCH x USING INDEX search_"), "{plan}");
    assert!(!plan.contains("SCAN tags") && !plan.contains("SCAN repositories"), "{plan}");
}

#[tokio::test]
async fn plans_use_indexes() {
    each_store(async |store: Store| {
        let visible = ListFilter::All;
        let is_sqlite = matches!(store.read(), Engine::Sqlite(_));
        let quantized = SearchFilter { quantization: Some("Q8_0".to_owned()), ..SearchFilter::default() };
        let content = SearchContent::ReadModels;
        let all = SearchFilter { content, represents: true, ..SearchFilter::default() };
        let tagged = SearchFilter { tags: vec!["gguf".to_owned(), "q8_0".to_owned()], ..all.clone() };
        let owned = SearchFilter { author: Some("team".to_owned()), ..all.clone() };
        let named =
            SearchFilter { in_name: vec!["qwen".to_owned()], content, represents: true, ..typed("qwen") };
        // Lists in the order of an index are not sorted before the page is cut.
        let cursor = SearchCursor { key: 5, repository: "team/a".to_owned() };
        let pages = [typed(""), typed("qwen"), quantized.clone()];
        let listings = [all.clone(), tagged.clone(), owned.clone(), named.clone()];
        let name = if is_sqlite { "sqlite_autoindex_search_1" } else { "search_pkey" };
        for (order, filters, index) in [
            (SearchOrder::Updated, &pages[..], "search_facts_by_update"),
            (SearchOrder::Parameters, &pages[..2], "search_first_by_parameters"),
            (SearchOrder::Parameters, &pages[2..], "search_by_parameters"),
            (SearchOrder::Size, &pages[..2], "search_first_by_size"),
            (SearchOrder::Size, &pages[2..], "search_by_size"),
            (SearchOrder::Name, &pages[..], name),
            (SearchOrder::Name, &listings[..], name),
            (SearchOrder::Newest, &listings[..], "search_by_newest"),
            (SearchOrder::Created, &listings[..], "search_by_creation"),
            (SearchOrder::Pulls, &pages[..], "search_by_pulls"),
            (SearchOrder::Pulls, &listings[..], "search_by_pulls"),
        ] {
            for filter in filters {
                for after in [None, Some(&cursor)] {
                    let range = PageRange { after, limit: 25 };
                    let (statement, text) =
                        store.search_text(&visible, filter, order, Amount::Many, None, range);
                    let plan = plan(&store, &statement, text.parameters).await;
                    assert_no_scan(&plan);
                    // Which one is the cheapest depends on the statistics of Postgres, and there are none.
                    if is_sqlite {
                        let used = format!("s USING INDEX {index}");
                        assert!(plan.contains(&used), "{order:?} {filter:?}\n{plan}");
                    }
                }
            }
        }
        // A search that finds few begins with its words or its facts.
        let rare = SearchFilter {
            prefers_words: true,
            quantization: quantized.quantization.clone(),
            ..typed("qwen")
        };
        let made_from = SearchFilter {
            prefers_words: true,
            base: Some("org/base:v1".to_owned()),
            ..SearchFilter::default()
        };
        for (filter, order, index) in [
            (&made_from, SearchOrder::Size, "search_facts_by_id"),
            (&rare, SearchOrder::Size, "search_facts_by_id"),
            (&typed("qwen"), SearchOrder::Relevance, "search_facts_by_id"),
            (&named, SearchOrder::Name, "search_facts_by_id"),
            (&quantized, SearchOrder::Size, "search_by_quantization_name"),
            (&tagged, SearchOrder::Newest, "search_tags"),
            (&owned, SearchOrder::Created, name),
        ] {
            let range = PageRange { after: None, limit: 25 };
            let (statement, text) = store.search_text(&visible, filter, order, Amount::Few, None, range);
            let (ids, found) = store.search_ids_text(&visible, filter);
            for (statement, text) in [(statement, text), (ids, found)] {
                let plan = plan(&store, &statement, text.parameters).await;
                assert_no_scan(&plan);
                assert!(!is_sqlite || plan.contains(index), "{filter:?}\n{plan}");
            }
        }
        // Frequent words and facts are looked for among the first repositories with the words.
        let frequent = SearchFilter { prefers_words: false, ..rare.clone() };
        let often_made_from = SearchFilter { prefers_words: false, ..made_from.clone() };
        for (filter, kind) in [(&frequent, "COVERING INDEX"), (&often_made_from, "INDEX")] {
            let (first, text) = store.search_first_ids_text(&visible, filter).unwrap();
            let plan = plan(&store, &first, text.parameters).await;
            assert_no_scan(&plan);
            let used = format!("s USING {kind} search_facts_by_id");
            assert!(!is_sqlite || plan.contains(&used), "{plan}");
        }
        // The tags of a repository are looked up before its row.
        let (ids, text) = store.search_ids_text(&visible, &tagged);
        let plan_of_tags = plan(&store, &ids, text.parameters).await;
        let (tag, row) = (plan_of_tags.find("SEARCH g0 "), plan_of_tags.find("SEARCH s "));
        assert!(!is_sqlite || (tag.is_some() && tag < row), "{plan_of_tags}");
        // What was found is read by number: neither the words, tags nor names nor the visibility are read again.
        let found = Amount::Found(&[1, 2, 3]);
        for filter in [&rare, &typed("qwen"), &named, &quantized, &tagged, &owned, &made_from] {
            let range = PageRange { after: None, limit: 25 };
            let (rows, text) = store.search_text(&visible, filter, SearchOrder::Size, found, None, range);
            let (facts, counted) = store.search_facets_text(&visible, filter, found, 25);
            for (statement, text) in [(rows, text), (facts, counted)] {
                let plan = plan(&store, &statement, text.parameters).await;
                assert_no_scan(&plan);
                let others = ["search_words", "search_tags", "visibilities", "grants"];
                let is_found = plan.contains("search_facts_by_id") || !is_sqlite;
                assert!(is_found && others.iter().all(|other| !plan.contains(other)), "{filter:?}\n{plan}");
            }
        }
        // The facts of many rows are counted without reading the table.
        for filter in &pages {
            for amount in [found, Amount::Many] {
                let (statement, text) = store.search_facets_text(&visible, filter, amount, 25);
                let plan = plan(&store, &statement, text.parameters).await;
                assert_no_scan(&plan);
                if is_sqlite && (amount == found || filter.typed.is_empty()) {
                    let index = if amount == found { "search_facts_by_id" } else { "search_facts_by_update" };
                    assert!(plan.contains(&format!("s USING COVERING INDEX {index}")), "{plan}");
                }
            }
        }
    })
    .await;
}

/// With frequent words and a frequent fact, the first ones that fit suffice. If they do not, all are found.
#[tokio::test]
async fn frequent_words_and_facts_find_all_that_fit() {
    const REPOSITORIES: i64 = 5000;
    each_store(async |store: Store| {
        let id = if matches!(store.read(), Engine::Sqlite(_)) { "rowid" } else { "id" };
        // Every other repository has the format, and every tenth the quantisation.
        for text in [
            "insert into search (repository, position, id, tag, digest, updated_at, newest_at, created_at, indexed_at, parameters,
                                 size_bytes, context_length, format, quantization)
             select 'team/r' || n, 0, n, 'v1', 'sha256:0', 1, 1, 1, 1, 1, 1, 1, case when n % 2 = 0 then 'gguf' else 'onnx' end,
                    case when n % 10 = 0 then 'Q8_0' else 'BF16' end"
                .to_owned(),
            format!("insert into search_words ({id}, words) select n, 'fine'"),
        ] {
            let numbers = "with recursive numbers(n) as (select 0 union all select n + 1 from numbers where n + 1 < $1)";
            let text = sqlx::AssertSqlSafe(format!("{numbers} {text} from numbers"));
            query!(store.write(), c => sqlx::query(text).bind(REPOSITORIES).execute(c).await.map(drop)).unwrap();
        }
        let of_format = SearchFilter { format: Some("gguf".to_owned()), ..typed("fine") };
        let of_both = SearchFilter { quantization: Some("q8_0".to_owned()), ..of_format.clone() };
        for (filter, expect) in [(&of_format, MAX_COUNT as usize + 1), (&of_both, REPOSITORIES as usize / 10)] {
            let found = store.search_ids(&ListFilter::All, filter).await.unwrap();
            let distinct: BTreeSet<i64> = found.iter().copied().collect();
            assert_eq!((found.len(), distinct.len()), (expect, expect));
            let step = if filter.quantization.is_some() { 10 } else { 2 };
            assert!(found.iter().all(|id| id % step == 0));
        }
    })
    .await;
}

#[tokio::test]
async fn repositories_are_listed_by_an_index() {
    each_store(async |store: Store| {
        let (all, visibility, subjects, targets) = ListFilter::All.parameters();
        let parameters = ["team/a", "team", "team/", "team0"].map(|text| Parameter::Text(text.to_owned()));
        let mut parameters = parameters.to_vec();
        parameters.extend([Parameter::Number(26), Parameter::Number(all), Parameter::Number(visibility)]);
        parameters.extend([Parameter::Text(subjects), Parameter::Text(targets)]);
        let plan = plan(&store, &store.repository_page_text(), parameters).await;
        assert_no_scan(&plan);
        if matches!(store.read(), Engine::Sqlite(_)) {
            let range = "SEARCH n USING INDEX sqlite_autoindex_repositories_1 (name>? AND name<?)";
            assert!(plan.contains(range), "{plan}");
        }
    })
    .await;
}

/// Fills a Postgres database with as many repositories as make a scan visible, most of them readable by everybody with
/// an account, and returns what such an account may list.
async fn fill_with_repositories(store: &Store) -> ListFilter {
    let Engine::Postgres(pool) = store.read() else { panic!("Postgres") };
    for text in [
        "insert into repositories (name, created_at) select 'org-' || n % 100 || '/r' || n, n from generate_series(1, 5000) n",
        "insert into search (repository, position, id, tag, digest, updated_at, newest_at, created_at, indexed_at, format,
                             quantization, license, parameters, size_bytes, context_length)
         select 'org-' || n % 100 || '/r' || n, p, n, 'v1', 'sha256:' || n || p, n, n, n, 1, 'gguf', 'Q' || p, 'MIT', n, n, n
         from generate_series(1, 5000) n, generate_series(0, 2) p",
        "insert into search_words (id, words) select n, to_tsvector('simple', 'fine tuned ' || n) from generate_series(1, 5000) n",
        "insert into visibilities (target, visibility)
         select 'org-' || n || '/*', case when n % 10 = 0 then 0 else 1 end from generate_series(0, 99) n",
        // Without names, it would read the tables of all tests that run.
        "analyze repositories, search, search_tags, search_words, visibilities, grants, tags, manifests, links, blobs, models",
    ] {
        sqlx::raw_sql(text).execute(pool).await.unwrap();
    }
    ListFilter::Readable {
        visibility: Visibility::Internal,
        subjects: vec![uuid::Uuid::new_v4()],
        targets: Vec::new(),
    }
}

/// Runs a statement. Returns its plan, and the most rows that one of its steps had.
async fn rows_read(store: &Store, statement: &str, parameters: Vec<Parameter>) -> (String, u64) {
    let plan = plan(store, &format!("(analyze, timing off, costs off) {statement}"), parameters).await;
    let count = |step: &str| {
        let (_, actual) = step.split_once("(actual rows=")?;
        let (rows, loops) = actual.split_once(" loops=")?;
        Some(rows.parse::<u64>().ok()? * loops.trim_end_matches(')').parse::<u64>().ok()?)
    };
    let most = plan.lines().filter_map(count).max().unwrap();
    (plan, most)
}

/// A page reads few rows more than it has, for a caller who may not read all of them.
#[tokio::test]
async fn postgres_reads_no_more_than_a_page() {
    let Some(url) = crate::store::postgres_for_test().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Some(&url), folder.path()).await.unwrap();
    let visible = fill_with_repositories(&store).await;
    let (all, visibility, subjects, targets) = visible.parameters();
    for (prefix, first, end) in [("", "", AFTER_NAMES), ("org-7", "org-7/", "org-70")] {
        let mut parameters = ["", prefix, first, end].map(|text| Parameter::Text(text.to_owned())).to_vec();
        parameters.extend([Parameter::Number(26), Parameter::Number(all), Parameter::Number(visibility)]);
        parameters.extend([Parameter::Text(subjects.clone()), Parameter::Text(targets.clone())]);
        let (plan, rows) = rows_read(&store, &store.repository_page_text(), parameters).await;
        assert!(rows <= 100, "{rows}\n{plan}");
    }
    let after = [Parameter::Text("org-5".to_owned()), Parameter::Number(32)];
    let (plan, rows) = rows_read(&store, &store.search_stale_text(), after.to_vec()).await;
    assert!(rows <= 32 * 3 * 3, "{rows}\n{plan}");
    let filter = SearchFilter { quantization: Some("q1".to_owned()), ..SearchFilter::default() };
    for order in [SearchOrder::Updated, SearchOrder::Name, SearchOrder::Size] {
        let range = PageRange { after: None, limit: 26 };
        let (statement, text) = store.search_text(&visible, &filter, order, Amount::Many, None, range);
        let (plan, rows) = rows_read(&store, &statement, text.parameters).await;
        assert!(rows <= 200, "{order:?} {rows}\n{plan}");
    }
    // Words that all repositories have, although the statistics know no beginnings of words.
    let range = PageRange { after: None, limit: 26 };
    let (statement, text) =
        store.search_text(&visible, &typed("fine"), SearchOrder::Updated, Amount::Many, None, range);
    let (plan, rows) = rows_read(&store, &statement, text.parameters).await;
    assert!(rows <= 200, "{rows}\n{plan}");
    // Values are counted, and the visibility is read, of few rows more than the limit, of 5,000 that fit.
    let both = SearchFilter { license: Some("mit".to_owned()), ..filter };
    let (statement, text) = store.search_facets_text(&visible, &both, Amount::Many, MAX_COUNT as usize);
    let (plan, rows) = rows_read(&store, &statement, text.parameters).await;
    assert!(rows <= MAX_COUNT + 500, "{rows}\n{plan}");
    let (statement, text) = store.search_ids_text(&visible, &both);
    let (plan, rows) = rows_read(&store, &statement, text.parameters).await;
    assert!(rows <= MAX_COUNT * 3 + 500, "{rows}\n{plan}");
    // With a word, the repositories of its list are looked up one after the other, until enough of them fit.
    let named = SearchFilter { quantization: both.quantization, license: both.license, ..typed("fine") };
    let (statement, text) = store.search_first_ids_text(&visible, &named).unwrap();
    let (plan, _) = rows_read(&store, &statement, text.parameters).await;
    let step = plan.lines().find(|step| is_scan_of(step, "search r")).unwrap();
    let (_, lookups) = step.trim_end_matches(')').rsplit_once(" loops=").unwrap();
    let lookups: u64 = lookups.parse().unwrap();
    assert!((MAX_COUNT..MAX_COUNT * 5 / 4).contains(&lookups), "{lookups}\n{plan}");
}

/// Compiling a statement takes longer than running it.
#[tokio::test]
async fn postgres_compiles_no_statement() {
    let Some(url) = crate::store::postgres_for_test().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Some(&url), folder.path()).await.unwrap();
    let Engine::Postgres(pool) = store.read() else { panic!("Postgres") };
    let (jit,): (String,) = sqlx::query_as("show jit").fetch_one(pool).await.unwrap();
    assert_eq!(jit, "off");
}

/// Columns of names have the collation of bytes or none of their own. Postgres finds a row by an index only if both sides
/// of the comparison have the same one.
#[tokio::test]
async fn postgres_finds_names_of_either_collation_by_an_index() {
    let Some(url) = crate::store::postgres_for_test().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Some(&url), folder.path()).await.unwrap();
    let (all, visibility, subjects, targets) = ListFilter::None.parameters();
    let listed = [
        Parameter::Number(all),
        Parameter::Number(visibility),
        Parameter::Text(subjects),
        Parameter::Text(targets),
    ];
    let texts = |all: &[&str]| all.iter().map(|text| Parameter::Text((*text).to_owned())).collect::<Vec<_>>();
    let number = || vec![Parameter::Number(26)];
    let range = PageRange { after: None, limit: 25 };
    let (found, text) = store.search_text(
        &ListFilter::None,
        &SearchFilter::default(),
        SearchOrder::Name,
        Amount::Many,
        None,
        range,
    );
    let page = [texts(&["team/a", "team", "team/", "team0"]), number(), listed.to_vec()].concat();
    let tagged = [texts(&["team/a", "v1"]), number(), listed.to_vec()].concat();
    for (statement, parameters, tables) in [
        (
            store.repository_page_text(),
            page,
            &["tags t", "manifests m", "links l", "visibilities v", "grants g"][..],
        ),
        (store.tagged_list_text(), tagged, &["visibilities v", "grants g"]),
        (store.search_stale_text(), [texts(&["team/a"]), number()].concat(), &["tags t", "search s"]),
        (found, text.parameters, &["tags c", "visibilities v", "grants g"]),
    ] {
        let plan = plan(&store, &statement, parameters).await;
        for table in tables {
            let mut steps = plan.lines().skip_while(|step| !is_scan_of(step, table));
            assert!(steps.next().is_some(), "{table}\n{plan}");
            let condition = steps.next().unwrap_or_default();
            let key = if ["visibilities v", "grants g"].contains(table) { "target" } else { "repository" };
            let is_indexed = ["Index Cond: ", "Recheck Cond: "].iter().any(|kind| condition.contains(kind));
            let is_found = is_indexed && condition.contains(&format!("({key} = "));
            assert!(is_found, "{table}: {condition}\n{plan}");
        }
    }
}

/// Whether a step of a plan scans a table, by its name and the alias in the statement.
fn is_scan_of(step: &str, table: &str) -> bool {
    // A bitmap is built by a step of the index, below that of the table.
    step.split_once(" on ").is_some_and(|(_, rest)| rest.starts_with(&format!("{table} ")))
}
