//! Listings: byte order, pages, referrers with their filter.

use super::*;
use crate::app::ContentKind;

#[tokio::test]
async fn tags_in_byte_order_and_pages() {
    each_engine(async |f: Fixture| {
        f.push("empty", b"x").await;
        for tag in ["b", "B", "a-1", "_z", "a", "1", "a.1"] {
            f.image("r", tag, "1").await;
        }
        let list = async |n: Option<u32>, last: Option<&str>| {
            let page = f.registry.tag_list(&CALLER, &repo("r"), n, last).await.unwrap();
            (page.items.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(" "), page.more)
        };
        let check = |got: (String, bool), text: &str, more: bool| assert_eq!(got, (text.to_owned(), more));
        check(list(None, None).await, "1 B _z a a-1 a.1 b", false);
        check(list(Some(3), None).await, "1 B _z", true);
        check(list(Some(3), Some("_z")).await, "a a-1 a.1", true);
        check(list(Some(3), Some("a.1")).await, "b", false);
        check(list(Some(7), None).await, "1 B _z a a-1 a.1 b", false);
        check(list(None, Some("A")).await, "B _z a a-1 a.1 b", false);
        check(list(Some(u32::MAX), Some("zz")).await, "", false);
        check(list(Some(0), None).await, "", false);
        let page = f.registry.tag_list(&CALLER, &repo("empty"), None, None).await.unwrap();
        assert!(page.items.is_empty());
        let result = f.registry.tag_list(&CALLER, &repo("never"), None, None).await;
        assert!(matches!(result, Err(Error::NameUnknown { .. })));
        let page = f.registry.repository_list(&CALLER, Some(1), None).await.unwrap();
        assert_eq!((page.items, page.more), (vec![repo("empty")], true));
        let page = f.registry.repository_list(&CALLER, None, Some("empty")).await.unwrap();
        assert_eq!((page.items, page.more), (vec![repo("r")], false));
    })
    .await;
}

#[tokio::test]
async fn everything_in_a_repository_is_listed() {
    each_engine(async |f: Fixture| {
        let (first, [config, layer]) = f.image("team/app", "v1", "one").await;
        let (second, [_, other]) = f.image("team/app", "v2", "number two").await;
        let both = f.put("team/app", "all", &index(&[&first, &second])).await.unwrap().digest;
        // Untagged, and about another manifest.
        let mut signature = image(&config, &[&layer]);
        signature["artifactType"] = json!("x/signature");
        signature["subject"] = descriptor(&first, media_type::OCI_MANIFEST);
        let bytes = serde_json::to_vec(&f.sized(signature.clone()).await).unwrap();
        let signature = f.put("team/app", Digest::sha256(&bytes).as_str(), &signature).await.unwrap().digest;
        f.push("team/app-2", b"alone").await;
        let size = |texts: &[&str]| texts.iter().map(|text| text.len() as u64).sum::<u64>();
        let one = size(&["config one", "layer one"]);
        let two = size(&["config number two", "layer number two"]);

        let tags = f.registry.tag_summaries(&CALLER, &repo("team/app"), None, None).await.unwrap();
        let found: Vec<_> = tags.items.iter().map(|tag| (tag.tag.as_str(), &tag.content.digest)).collect();
        assert_eq!(found, [("all", &both), ("v1", &first), ("v2", &second)]);
        let sizes: Vec<u64> = tags.items.iter().map(|tag| tag.content.size_bytes).collect();
        assert_eq!(sizes, [one + two, one, two], "an index has the size of its manifests");
        assert_eq!(tags.items[0].content.kind, ContentKind::Index);
        assert!(tags.items.iter().all(|tag| tag.modified_at > 0 && tag.actor.is_none()));
        assert_eq!(tags.items.iter().map(|tag| tag.is_signed).collect::<Vec<_>>(), [false, true, false]);
        let page = f.registry.tag_summaries(&CALLER, &repo("team/app"), Some(1), Some("all")).await.unwrap();
        assert_eq!((page.items[0].tag.as_str(), page.more), ("v1", true));

        let (mut found, mut last) = (Vec::new(), None);
        loop {
            let page = f
                .registry
                .manifest_summaries(&CALLER, &repo("team/app"), Some(3), last.as_ref())
                .await
                .unwrap();
            last = page.items.last().map(|manifest| manifest.content.digest.clone());
            found.extend(page.items);
            if !page.more {
                break;
            }
        }
        let mut digests = vec![&first, &second, &both, &signature];
        digests.sort();
        assert_eq!(found.iter().map(|manifest| &manifest.content.digest).collect::<Vec<_>>(), digests);
        for manifest in &found {
            let is_signature = manifest.content.digest == signature;
            assert_eq!(manifest.tags.is_empty(), is_signature);
            assert_eq!(manifest.subject.as_ref(), is_signature.then_some(&first));
            assert_eq!(manifest.content.kind == ContentKind::Artifact, is_signature);
        }

        let list = async |prefix: Option<&str>, n: Option<u32>, last: Option<&str>| {
            let prefix = prefix.map(repo);
            let page = f.registry.repository_summaries(&CALLER, prefix.as_ref(), n, last).await.unwrap();
            let items = page.items.into_iter();
            (items.map(|r| (r.repository.to_string(), r.tags, r.manifests)).collect::<Vec<_>>(), page.more)
        };
        let (app, app_2) = (("team/app".to_owned(), 3, 4), ("team/app-2".to_owned(), 0, 0));
        assert_eq!(list(None, None, None).await, (vec![app.clone(), app_2.clone()], false));
        assert_eq!(list(None, Some(1), None).await, (vec![app.clone()], true));
        assert_eq!(list(None, Some(1), Some("team/app")).await, (vec![app_2.clone()], false));
        assert_eq!(list(Some("team"), None, None).await, (vec![app.clone(), app_2], false));
        assert_eq!(list(Some("team/app"), None, None).await, (vec![app], false));
        assert_eq!(list(Some("tea"), None, None).await, (Vec::new(), false));
        let all = f.registry.repository_summaries(&CALLER, None, None, None).await.unwrap().items;
        assert_eq!(all[1].size_bytes, 5);
        assert!(all[0].size_bytes > one + size(&["layer number two"]) && all[0].modified_at > 0);
        assert_ne!(other, layer);

        let nowhere = f.registry.tag_summaries(&CALLER, &repo("never"), None, None).await;
        assert!(matches!(nowhere, Err(Error::NameUnknown { .. })));
        let nowhere = f.registry.manifest_summaries(&CALLER, &repo("never"), None, None).await;
        assert!(matches!(nowhere, Err(Error::NameUnknown { .. })));
        let empty = f.registry.tag_summaries(&CALLER, &repo("team/app-2"), None, None).await.unwrap();
        assert!(empty.items.is_empty());

        // Cosign's name for the signatures of a digest.
        let (signed, _) = f.image("team/signed", "v1", "one").await;
        f.image("team/signed", &format!("{}.sig", signed.as_str().replace(':', "-")), "signature").await;
        let cosign = f.registry.tag_summaries(&CALLER, &repo("team/signed"), None, None).await.unwrap();
        let found: Vec<_> =
            cosign.items.iter().map(|tag| (tag.content.digest == signed, tag.is_signed)).collect();
        assert_eq!(found, [(false, false), (true, true)]);
    })
    .await;
}

#[tokio::test]
async fn referrers_of_a_subject() {
    each_engine(async |f: Fixture| {
        let subject = Digest::sha256(b"not pushed yet");
        let config = f.push("r", b"{}").await;
        let mut expected = Vec::new();
        for (artifact_type, note) in [(Some("x/signature"), "1"), (Some("x/sbom"), "2"), (None, "3")] {
            let mut manifest = image(&config, &[]);
            manifest["subject"] = descriptor(&subject, media_type::OCI_MANIFEST);
            manifest["annotations"] = json!({"note": note});
            if let Some(artifact_type) = artifact_type {
                manifest["artifactType"] = json!(artifact_type);
            }
            let put = f.put("r", &format!("t{note}"), &manifest).await.unwrap();
            assert_eq!(put.subject.as_ref(), Some(&subject));
            expected.push((
                put.digest,
                artifact_type.unwrap_or(media_type::OCI_CONFIG).to_owned(),
                note.to_owned(),
            ));
        }
        let mut listed = index(&[]);
        listed["subject"] = descriptor(&subject, media_type::OCI_MANIFEST);
        let put = f.put("r", "t4", &listed).await.unwrap();
        expected.push((put.digest.clone(), String::new(), String::new()));
        expected.sort();

        let list =
            async |repository: &str, artifact_type: Option<&str>, after: Option<&Digest>, limit: u32| {
                let repository = repo(repository);
                let page = f
                    .registry
                    .referrers(&CALLER, &repository, &subject, artifact_type, after, limit)
                    .await
                    .unwrap();
                let items: Vec<_> = page
                    .items
                    .into_iter()
                    .map(|r| {
                        (
                            r.digest,
                            r.artifact_type.unwrap_or_default(),
                            r.annotations.get("note").cloned().unwrap_or_default(),
                        )
                    })
                    .collect();
                (items, page.more)
            };
        assert_eq!(list("r", None, None, 10).await, (expected.clone(), false));
        assert_eq!(list("r", None, None, 3).await, (expected[..3].to_vec(), true));
        assert_eq!(list("r", None, Some(&expected[2].0), 3).await, (expected[3..].to_vec(), false));
        let (sboms, _) = list("r", Some("x/sbom"), None, 10).await;
        assert_eq!(sboms.len(), 1);
        assert_eq!(sboms[0].2, "2");
        assert_eq!(list("elsewhere", None, None, 10).await, (Vec::new(), false));
        // A deleted referrer is no longer listed.
        f.delete("r", put.digest.as_str()).await.unwrap();
        assert_eq!(list("r", None, None, 10).await.0.len(), 3);
    })
    .await;
}
