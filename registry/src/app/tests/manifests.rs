//! Manifests: rejected ones, tags that move together, and deletions.

use super::*;
use crate::store::Engine;

#[tokio::test]
async fn manifests_are_returned_byte_for_byte() {
    each_engine(async |f: Fixture| {
        let config = f.push("r", b"{}").await;
        let text = format!(
            "{{ \"schemaVersion\": 2,\n \"mediaType\": \"{}\", \"x-unknown\": [1.50, \"\\u0041\"],
              \"config\": {{\"mediaType\":\"a/b\",\"digest\":\"{config}\",\"size\":2,\"data\":\"e30=\"}}, \"layers\": [] }}\n",
            media_type::OCI_MANIFEST
        );
        let put = |reference: String, tags: Vec<lode_model::reference::Tag>| {
            let (f, text) = (&f, Bytes::from(text.clone()));
            async move {
                let content_type = Some("application/vnd.oci.image.manifest.v1+json; charset=utf-8");
                f.registry.manifest_put(&CALLER, &repo("r"), &reference_of(&reference), content_type, text, &tags).await
            }
        };
        let tags = vec!["b".parse().unwrap(), "a".parse().unwrap(), "b".parse().unwrap()];
        let stored = put("a".into(), tags.clone()).await.unwrap();
        assert_eq!(stored.digest, Digest::sha256(text.as_bytes()));
        assert_eq!(stored.tags.iter().map(|t| t.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let by_512 = sha512(text.as_bytes());
        put(by_512.to_string(), vec!["s".parse().unwrap()]).await.unwrap();
        for (reference, digest) in [("a", &stored.digest), ("b", &stored.digest), ("s", &by_512)] {
            let found = f.registry.manifest_get(&CALLER, &repo("r"), &reference_of(reference)).await.unwrap();
            assert_eq!((&found.digest, &found.bytes[..]), (digest, text.as_bytes()));
            assert_eq!(found.media_type, media_type::OCI_MANIFEST);
        }
        // It is an ordinary blob as well.
        assert_eq!(f.pull("r", &stored.digest).await.unwrap(), text.as_bytes());
        let wrong = put(Digest::sha256(b"x").to_string(), Vec::new()).await;
        assert!(matches!(wrong, Err(Error::DigestMismatch { .. })));
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_full_database_leaves_no_bytes() {
    let f = Fixture::start(None, None, &|_| {}, WriteLimit::default()).await;
    let config = f.push("r", b"{}").await;
    let Engine::Sqlite(pool) = f.registry.store().write() else { panic!("the database is a file") };
    let pages: i64 = sqlx::query_scalar("pragma page_count").fetch_one(pool).await.unwrap();
    let at_most = async |pages: i64| {
        let pragma = sqlx::AssertSqlSafe(format!("pragma max_page_count = {pages}"));
        sqlx::query_scalar::<_, i64>(pragma).fetch_one(pool).await.unwrap()
    };
    assert_eq!(at_most(pages).await, pages);
    let mut manifest = image(&config, &[]);
    manifest["annotations"] = serde_json::json!({ "long": "x".repeat(100_000) });
    let refused = f.put("r", "t", &manifest).await;
    assert!(matches!(refused, Err(Error::StorageFull)), "{refused:?}");
    assert_eq!(f.leftovers().await, Vec::<String>::new());
    at_most(1 << 20).await;
    f.put("r", "t", &manifest).await.unwrap();
    f.assert_sound().await;
}

#[tokio::test]
async fn a_manifest_with_missing_references_is_rejected() {
    each_engine(async |f: Fixture| {
        let here = f.push("r", b"here").await;
        let elsewhere = f.push("other", b"elsewhere").await;
        let nowhere = Digest::sha256(b"nowhere");
        match f.put("r", "t", &image(&here, &[&here, &elsewhere, &nowhere, &nowhere])).await {
            Err(Error::ManifestBlobsUnknown(mut missing)) => {
                missing.sort();
                let mut expected = vec![elsewhere.clone(), nowhere.clone()];
                expected.sort();
                assert_eq!(missing, expected);
            }
            other => panic!("{other:?}"),
        }
        // A child has to be a manifest, not only a blob.
        assert!(matches!(f.put("r", "t", &index(&[&here])).await, Err(Error::ManifestBlobsUnknown(_))));
        assert!(matches!(f.get("r", "t").await, Err(Error::ManifestUnknown { .. })));
        // Never required: a subject, layers that live elsewhere.
        let mut manifest = image(&here, &[]);
        manifest["subject"] = descriptor(&nowhere, media_type::OCI_MANIFEST);
        manifest["layers"] = json!([
            {"mediaType": media_type::DOCKER_FOREIGN_LAYER, "digest": nowhere, "size": 1},
            {"mediaType": "a/b", "digest": elsewhere, "size": 1, "urls": ["https://example.com/x"]},
        ]);
        let put = f.put("r", "t", &manifest).await.unwrap();
        assert_eq!(put.subject, Some(nowhere));
        assert!(matches!(
            f.put("r", "u", &json!({"schemaVersion": 1})).await,
            Err(Error::ManifestInvalid(_))
        ));
        let huge = Bytes::from(vec![b' '; lode_model::manifest::MAX_MANIFEST_BYTES + 1]);
        let result = f.registry.manifest_put(&CALLER, &repo("r"), &reference_of("t"), None, huge, &[]).await;
        assert!(matches!(result, Err(Error::ManifestTooLarge { .. })));
        // A refused manifest leaves no bytes.
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn sparse_where_it_is_allowed() {
    let sparse = |config: &mut Config| {
        config.allow_sparse = true;
        no_grace(config);
    };
    each_engine_with(&sparse, WriteLimit::default(), async |f: Fixture| {
        let (child, _) = f.image("r", "child", "1").await;
        let absent = Digest::sha256(b"absent");
        f.put("r", "index", &index(&[&child, &absent])).await.unwrap();
        f.put("r", "image", &image(&absent, &[])).await.unwrap();
        f.assert_sound().await;
        // A blob that is pushed later belongs to the manifest that already names it.
        assert_eq!(f.push("r", b"absent").await, absent);
        f.registry.gc_run(&CALLER, false).await.unwrap();
        assert_eq!(f.pull("r", &absent).await.unwrap(), b"absent");
    })
    .await;
}

#[tokio::test]
async fn tags_can_be_moved_and_deleted() {
    each_engine(async |f: Fixture| {
        let (first, _) = f.image("r", "t", "1").await;
        let (second, _) = f.image("r", "t", "2").await;
        assert_eq!(f.get("r", "t").await.unwrap(), second);
        assert_eq!(f.get("r", first.as_str()).await.unwrap(), first);
        f.put("r", "t2", &image(&Digest::sha256(b"config 2"), &[&Digest::sha256(b"layer 2")])).await.unwrap();
        // Deleting a tag deletes only the tag.
        f.delete("r", "t2").await.unwrap();
        assert!(matches!(f.delete("r", "t2").await, Err(Error::ManifestUnknown { .. })));
        assert_eq!(f.get("r", second.as_str()).await.unwrap(), second);
        // Deleting a digest deletes its tags too.
        f.delete("r", second.as_str()).await.unwrap();
        for gone in ["t", second.as_str()] {
            assert!(matches!(f.get("r", gone).await, Err(Error::ManifestUnknown { .. })));
            assert!(matches!(f.delete("r", gone).await, Err(Error::ManifestUnknown { .. })));
        }
        assert!(matches!(f.get("never", "t").await, Err(Error::NameUnknown { .. })));
        assert!(matches!(f.delete("never", "t").await, Err(Error::NameUnknown { .. })));
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn deleting_in_one_repository_keeps_the_others() {
    each_engine(async |f: Fixture| {
        let (manifest, blobs) = f.image("here", "t", "1").await;
        let (same, _) = f.image("there", "t", "1").await;
        assert_eq!(manifest, same);
        // The blobs of a manifest stay as long as the manifest.
        for digest in blobs.iter().chain([&manifest]) {
            let result = f.registry.blob_delete(&CALLER, &repo("here"), digest).await;
            assert!(matches!(result, Err(Error::BlobReferenced { .. })), "{result:?}");
            let result = f.registry.blob_delete(&CALLER, &repo("nowhere"), digest).await;
            assert!(matches!(result, Err(Error::BlobUnknown { .. })), "{result:?}");
        }
        f.delete("here", manifest.as_str()).await.unwrap();
        for digest in &blobs {
            f.registry.blob_delete(&CALLER, &repo("here"), digest).await.unwrap();
            assert!(matches!(f.pull("here", digest).await, Err(Error::BlobUnknown { .. })));
            assert!(f.pull("there", digest).await.is_ok());
        }
        assert_eq!(f.get("there", "t").await.unwrap(), manifest);
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_mount_links_the_blob() {
    each_engine(async |f: Fixture| {
        let digest = f.push("from", b"mounted").await;
        let mount = async |target: &str, digest: &Digest, from: Option<&str>| {
            let from = from.map(repo);
            f.registry.blob_mount(&CALLER, &repo(target), digest, from.as_ref()).await.unwrap()
        };
        assert_eq!(mount("to", &Digest::sha256(b"?"), Some("from")).await, None);
        assert_eq!(mount("to", &digest, Some("nowhere")).await, None);
        assert_eq!(mount("to", &Digest::sha256(b"?"), None).await, None);
        assert_eq!(mount("to", &digest, Some("from")).await.unwrap().size_bytes, 7);
        assert_eq!(mount("anonymous", &digest, None).await.unwrap().size_bytes, 7);
        // The source may be deleted.
        f.registry.blob_delete(&CALLER, &repo("from"), &digest).await.unwrap();
        for target in ["to", "anonymous"] {
            assert_eq!(f.pull(target, &digest).await.unwrap(), b"mounted");
        }
        f.assert_sound().await;
    })
    .await;
}

#[tokio::test]
async fn a_copy_visits_each_manifest_once() {
    each_engine(async |f: Fixture| {
        let (mut below, blobs) = f.image("r", "t", "1").await;
        // Each lists the one below it many times: there are 50^6 paths.
        for level in 0..6 {
            below = f.put("r", &format!("level{level}"), &index(&[&below; 50])).await.unwrap().digest;
        }
        let (from, to) = (repo("r"), repo("other"));
        let copy = |name: &'static str| async {
            let (from, to) = ((&from, &reference_of(name)), (&to, &reference_of("copy")));
            f.registry.model_copy(&CALLER, from, to).await
        };
        assert!(copy("level5").await.unwrap());
        assert_eq!(f.get("other", "copy").await.unwrap(), below);
        assert!(f.pull("other", &blobs[1]).await.is_ok());
        assert!(!copy("nothing").await.unwrap());
        // Nested deeper than the limit.
        for level in 6..8 {
            below = f.put("r", &format!("level{level}"), &index(&[&below])).await.unwrap().digest;
        }
        let refused = copy("level7").await;
        assert!(matches!(refused, Err(Error::IndexTooLarge { .. })), "{refused:?}");
        f.assert_sound().await;
    })
    .await;
}
