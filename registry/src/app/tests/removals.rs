//! Retention, records of removals, undo, and the dry run that reports all of it.

use super::*;
use crate::app::{GcReport, Removal};
use crate::config::RetentionRule;

const LONG: Duration = Duration::from_secs(3600);

async fn gc(f: &Fixture) -> GcReport {
    f.registry.gc_run(&CALLER, false).await.unwrap()
}

/// Runs a dry run and a real one, which must report the same. Returns the removals of the dry run.
async fn dry_run_and_run(f: &Fixture) -> Vec<Removal> {
    let mut dry = f.registry.gc_run(&CALLER, true).await.unwrap();
    let removals = std::mem::take(&mut dry.removals);
    assert_eq!(gc(f).await, GcReport { dry_run: false, ..dry });
    removals
}

async fn undo(f: &Fixture, repository: &str, reference: &str) -> Result<Vec<String>, Error> {
    let restored = f.registry.gc_undo(&CALLER, &repo(repository), &reference_of(reference)).await?;
    let mut names: Vec<String> = restored.tags.iter().map(ToString::to_string).collect();
    names.extend(restored.manifests.iter().map(ToString::to_string));
    Ok(names)
}

async fn record(f: &Fixture, kind: &str) -> Vec<(String, String)> {
    let page = f.registry.removals(&CALLER, None, None, None).await.unwrap();
    let of_kind = page.removals.into_iter().filter(|removal| removal.kind == kind);
    of_kind.map(|removal| (removal.tag.unwrap_or(removal.digest), removal.reason)).collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

fn at_once_with_undo(config: &mut Config) {
    no_grace(config);
    config.gc_undo = Some(LONG);
}

#[tokio::test]
async fn a_restored_manifest_gets_its_tags_back() {
    each_engine_with(&at_once_with_undo, WriteLimit::default(), async |f: Fixture| {
        let (digest, blobs) = f.image("r", "one", "1").await;
        f.image("r", "two", "1").await;
        // A tag alone, then the manifest with the other tag.
        f.delete("r", "one").await.unwrap();
        f.delete("r", digest.as_str()).await.unwrap();
        dry_run_and_run(&f).await;
        assert!(f.pull("r", &blobs[1]).await.is_err());
        assert!(f.holds(&blobs[1]).await, "the bytes are kept as long as the removal can be undone");

        assert_eq!(undo(&f, "r", digest.as_str()).await.unwrap(), ["two", "one", digest.as_str()]);
        dry_run_and_run(&f).await;
        for tag in ["one", "two"] {
            assert_eq!(f.get("r", tag).await.unwrap(), digest);
        }
        assert_eq!(f.pull("r", &blobs[1]).await.unwrap(), b"layer 1");
        f.assert_sound().await;
        // An undo cannot be repeated, or replace a tag in use.
        assert!(matches!(undo(&f, "r", digest.as_str()).await, Err(Error::RemovalUnknown { .. })));
        assert!(matches!(undo(&f, "r", "one").await, Err(Error::TagInUse { .. })));
        assert!(matches!(undo(&f, "r", "never").await, Err(Error::RemovalUnknown { .. })));
        // An undo of a tag restores its manifest.
        f.delete("r", digest.as_str()).await.unwrap();
        gc(&f).await;
        assert_eq!(undo(&f, "r", "two").await.unwrap(), ["two", digest.as_str()]);
        assert_eq!(undo(&f, "r", "one").await.unwrap(), ["one"]);
        f.assert_sound().await;
        let deleted =
            owned(&[("two", "deleted"), ("one", "deleted"), ("two", "deleted"), ("one", "deleted")]);
        let mut tags = record(&f, "tag").await;
        tags.sort();
        let mut expected = deleted;
        expected.sort();
        assert_eq!(tags, expected);
    })
    .await;
}

#[tokio::test]
async fn an_undo_keeps_a_tag_that_was_pushed_meanwhile() {
    each_engine_with(&at_once_with_undo, WriteLimit::default(), async |f: Fixture| {
        let (old, _) = f.image("r", "one", "1").await;
        f.delete("r", "one").await.unwrap();
        // The undo reads the removal, a push takes the tag, and the undo continues.
        let store = f.registry.store();
        let removals = store.removals_of_manifest_tags(&repo("r"), &old).await.unwrap();
        assert_eq!(removals.len(), 1);
        let (new, _) = f.image("r", "one", "2").await;
        let restored = f.registry.tags_restore(&CALLER, &repo("r"), &old, &removals).await;
        assert!(matches!(restored, Err(Error::TagInUse { .. })), "{restored:?}");
        assert_eq!(f.get("r", "one").await.unwrap(), new);
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_restored_index_restores_its_children() {
    each_engine_with(&at_once_with_undo, WriteLimit::default(), async |f: Fixture| {
        let config = f.push("r", b"{}").await;
        let layer = f.push("r", b"layer").await;
        let manifest = f.sized(image(&config, &[&layer])).await;
        let child = Digest::sha256(&serde_json::to_vec(&manifest).unwrap());
        f.put("r", child.as_str(), &manifest).await.unwrap();
        let top = f.put("r", "all", &index(&[&child])).await.unwrap().digest;
        f.delete("r", "all").await.unwrap();
        assert_eq!(dry_run_and_run(&f).await.iter().filter(|removal| removal.kind == "manifest").count(), 2);
        assert!(f.get("r", child.as_str()).await.is_err());
        assert_eq!(undo(&f, "r", "all").await.unwrap(), ["all", child.as_str(), top.as_str()]);
        gc(&f).await;
        assert_eq!(f.pull("r", &layer).await.unwrap(), b"layer");
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn an_undo_expires() {
    let brief = |config: &mut Config| {
        no_grace(config);
        config.gc_undo = Some(Duration::from_millis(500));
        config.gc_history = Duration::ZERO;
    };
    each_engine_with(&brief, WriteLimit::default(), async |f: Fixture| {
        let (digest, blobs) = f.image("r", "t", "1").await;
        f.delete("r", "t").await.unwrap();
        let started = std::time::Instant::now();
        while gc(&f).await.blobs == 0 {}
        assert!(started.elapsed() > Duration::from_millis(400));
        assert!(!f.holds(&blobs[1]).await);
        assert!(matches!(undo(&f, "r", digest.as_str()).await, Err(Error::RemovalUnknown { .. })));
        // The record is kept no longer than that.
        while !record(&f, "manifest").await.is_empty() {
            gc(&f).await;
        }
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn an_undo_races_with_the_collection() {
    each_engine_with(&at_once_with_undo, WriteLimit::default(), async |f: Fixture| {
        for round in 0..10 {
            let (digest, _) = f.image("r", "t", "1").await;
            f.delete("r", "t").await.unwrap();
            let collecting = async {
                gc(&f).await;
                gc(&f).await;
            };
            let ((), restored) = tokio::join!(collecting, undo(&f, "r", "t"));
            restored.unwrap_or_else(|error| panic!("round {round}: {error}"));
            gc(&f).await;
            assert_eq!(f.get("r", "t").await.unwrap(), digest);
        }
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn rules_keep_the_last_tags_and_those_they_name() {
    let rules = |config: &mut Config| {
        at_once_with_undo(config);
        config.retention = vec![
            RetentionRule {
                repositories: vec!["ci/*".to_owned()],
                keep_last: Some(2),
                keep: vec!["v*".to_owned()],
                remove_untagged_after: None,
            },
            RetentionRule {
                repositories: vec!["tmp".to_owned()],
                remove_untagged_after: Some(Duration::ZERO),
                ..RetentionRule::default()
            },
        ];
    };
    each_engine_with(&rules, WriteLimit::default(), async |f: Fixture| {
        for tag in ["v1", "1", "2", "3", "4"] {
            f.image("ci/app", tag, tag).await;
            f.image("other", tag, tag).await;
            // Tags are ordered by time.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (moved, _) = f.image("tmp", "t", "first").await;
        f.image("tmp", "t", "second").await;

        let removals = dry_run_and_run(&f).await;
        let tags: Vec<_> = removals.iter().filter_map(|removal| removal.tag.as_deref()).collect();
        assert_eq!(tags, ["2", "1"]);
        let (a, b): (Option<u32>, Option<u32>) = (removals[0].rule, removals.last().unwrap().rule);
        assert_eq!((a, b), (Some(1), None));
        let untagged: Vec<_> = removals.iter().filter(|removal| removal.reason == "untagged").collect();
        assert_eq!((untagged.len(), &untagged[0].digest[..], untagged[0].rule), (1, moved.as_str(), Some(2)));

        let left = f.registry.tag_list(&CALLER, &repo("ci/app"), None, None).await.unwrap();
        assert_eq!(left.items.iter().map(|tag| tag.as_str()).collect::<Vec<_>>(), ["3", "4", "v1"]);
        assert_eq!(f.registry.tag_list(&CALLER, &repo("other"), None, None).await.unwrap().items.len(), 5);
        assert!(f.get("tmp", moved.as_str()).await.is_err() && f.get("tmp", "t").await.is_ok());
        assert_eq!(record(&f, "tag").await, owned(&[("1", "keep_last"), ("2", "keep_last")]));
        // A restored tag is the newest, and is kept in place of another one.
        undo(&f, "ci/app", "1").await.unwrap();
        dry_run_and_run(&f).await;
        let left = f.registry.tag_list(&CALLER, &repo("ci/app"), None, None).await.unwrap();
        assert_eq!(left.items.iter().map(|tag| tag.as_str()).collect::<Vec<_>>(), ["1", "4", "v1"]);
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_waits_for_no_lock() {
    each_engine_with(&no_grace, WriteLimit::default(), async |f: Fixture| {
        f.image("r", "t", "1").await;
        f.delete("r", "t").await.unwrap();
        // While another client writes and a collection is in progress.
        let _tx = f.registry.store().begin().await.unwrap();
        let _turn = f.registry.gc_lock().await.unwrap();
        let dry = f.registry.gc_run(&CALLER, true).await.unwrap();
        assert_eq!((dry.manifests, dry.links, dry.blobs), (1, 3, 3));
    })
    .await;
}
