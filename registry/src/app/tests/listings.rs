//! Listings: byte order, pages, referrers with their filter.

use super::*;

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
