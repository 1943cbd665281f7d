//! Three replicas on one Postgres and one bucket. Replicas are stateless, so each request may go to another
//! one.

use futures::StreamExt;
use lode_tests::artifact::{Image, fresh_seed, random_bytes, sha256};
use lode_tests::cluster::Cluster;
use lode_tests::oci::{Registry, offset_in, with_query};
use lode_tests::server::Options;
use lode_tests::services::Backends;

async fn start_three(test: &str) -> Option<Cluster> {
    let backing = Backends::shared(test)?;
    Some(Cluster::start(3, &backing, Options::new()).await)
}

/// The URL of an upload at another replica.
fn upload_at(registry: &Registry, location: &str) -> String {
    let (_, path) = location.split_once("/v2/").unwrap();
    registry.at(&format!("/v2/{path}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_continues_on_another_replica() {
    let Some(cluster) = start_three("replicas::half_a_blob_here").await else { return };
    let [a, b, c] = [0, 1, 2].map(|replica| cluster.registry(replica));
    // Sizes near a part boundary and far from it, with incomplete last parts.
    for (first, rest) in [(3_000, 5_000), (5 << 20, 1), (7_000_000, 13_000_001), (12_000_000, 0)] {
        let bytes = random_bytes(fresh_seed(), first + rest);
        let digest = sha256(&bytes);
        let location = a.upload_open("half").await;
        a.upload_append(&location, 0, &bytes[..first]).await.expect(202);
        assert_eq!(b.upload_offset(&upload_at(&b, &location)).await, first as u64);
        if rest > 0 {
            b.upload_append(&upload_at(&b, &location), first as u64, &bytes[first..]).await.expect(202);
        }
        c.upload_finish(&upload_at(&c, &location), &digest, b"").await.expect(201);
        for registry in [&a, &b, &c] {
            let response = registry.blob_get("half", &digest).await.expect(200);
            assert!(
                response.body == bytes,
                "{first} and {rest} bytes: {} returns a different blob",
                registry.url
            );
        }
    }
    cluster.lode(1).run(&["fsck", "--verify"]).await.expect_success();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_survives_the_replica_that_it_began_on() {
    let Some(mut cluster) = start_three("replicas::an_upload_survives").await else { return };
    let [a, b] = [0, 1].map(|replica| cluster.registry(replica));
    let bytes = random_bytes(fresh_seed(), 30_000_000);
    let location = a.upload_open("survives").await;
    a.upload_append(&location, 0, &bytes[..6_000_000]).await.expect(202);
    // The replica is killed during the next PATCH. Earlier acknowledged bytes must be stored; some of the new
    // ones may be.
    let path = upload_at(&a, &location);
    let pieces: Vec<_> = bytes[6_000_000..].chunks(100_000).map(<[u8]>::to_vec).collect();
    let (sender, mut halfway) = tokio::sync::mpsc::channel(1);
    let slow = futures::stream::iter(pieces.into_iter().enumerate()).then(move |(i, piece)| {
        let sender = sender.clone();
        async move {
            if i == 120 {
                let _ = sender.send(()).await;
            }
            if i == 200 {
                std::future::pending::<()>().await; // so that the replica never receives all bytes
            }
            Ok::<_, std::io::Error>(piece)
        }
    });
    let request = a.request("PATCH", &path).header("content-range", format!("6000000-{}", bytes.len() - 1));
    let body = reqwest::Body::wrap_stream(slow);
    let request = request.header("content-length", bytes.len() - 6_000_000).body(body);
    let sending = tokio::spawn({
        let a = a.clone();
        async move { a.try_send(request).await.map(|response| response.status) }
    });
    halfway.recv().await.unwrap();
    cluster.kill(0);
    assert!(sending.await.unwrap().is_err(), "a killed replica responded");
    let status = b.get(&upload_at(&b, &location)).await.expect(204);
    let offset = offset_in(status.header("range").unwrap()) as usize;
    assert!((6_000_000..=bytes.len()).contains(&offset), "{offset}");
    b.upload_append(&upload_at(&b, &location), offset as u64, &bytes[offset..]).await.expect(202);
    b.upload_finish(&upload_at(&b, &location), &sha256(&bytes), b"").await.expect(201);
    assert!(b.blob_get("survives", &sha256(&bytes)).await.expect(200).body == bytes);
    cluster.lode(1).run(&["fsck", "--verify"]).await.expect_success();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_writers_at_two_replicas_do_not_corrupt_an_upload() {
    let Some(cluster) = start_three("replicas::of_two_writers").await else { return };
    let [a, b, c] = [0, 1, 2].map(|replica| cluster.registry(replica));
    for round in 0..5 {
        let bytes = random_bytes(fresh_seed(), 9_000_000 + round);
        let digest = sha256(&bytes);
        let location = a.upload_open("writers").await;
        // The same chunk twice, as from a client with a short timeout.
        let (here, there) = (upload_at(&a, &location), upload_at(&b, &location));
        let (first, second) =
            tokio::join!(a.upload_append(&here, 0, &bytes), b.upload_append(&there, 0, &bytes));
        for response in [&first, &second] {
            assert!([202, 409, 416].contains(&response.status), "{} `{}`", response.status, response.text());
        }
        let offset = c.upload_offset(&upload_at(&c, &location)).await as usize;
        let acknowledged = first.status == 202 || second.status == 202;
        assert!(
            !acknowledged || offset == bytes.len(),
            "only {offset} bytes of an acknowledged chunk are stored"
        );
        c.upload_finish(&upload_at(&c, &location), &digest, &bytes[offset..]).await.expect(201);
        assert!(c.blob_get("writers", &digest).await.expect(200).body == bytes);
        // Both close the upload. It becomes one blob, and each response is a success or says that the upload
        // is closed.
        let location = a.upload_open("writers").await;
        let other = random_bytes(fresh_seed(), 6_000_000);
        a.upload_append(&location, 0, &other).await.expect(202);
        let (here, there) = (upload_at(&a, &location), upload_at(&b, &location));
        let digest = sha256(&other);
        let (first, second) =
            tokio::join!(a.upload_finish(&here, &digest, b""), b.upload_finish(&there, &digest, b""));
        let statuses = [first.status, second.status];
        assert!(statuses.contains(&201), "{statuses:?} {} {}", first.text(), second.text());
        assert!(statuses.iter().all(|s| [201, 404, 409, 416].contains(s)), "{statuses:?}");
        assert!(c.blob_get("writers", &digest).await.expect(200).body == other);
    }
    cluster.lode(2).run(&["fsck", "--verify"]).await.expect_success();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_to_another_replica() {
    let Some(mut cluster) = start_three("replicas::every_request_to_another").await else { return };
    let switch = cluster.switch();
    let registry = Registry::new(switch.url());
    let image = Image::random(fresh_seed(), 3, 700_000);
    let digest = image.push(&registry, "switched", "v1").await;
    image.check(&registry, "switched", "v1").await;
    // In chunks, each to another replica.
    let bytes = random_bytes(fresh_seed(), 900_000);
    let mut location = registry.upload_open("switched").await;
    for (i, chunk) in bytes.chunks(100_000).enumerate() {
        let response = registry.upload_append(&location, i as u64 * 100_000, chunk).await.expect(202);
        location = registry.at(response.header("location").unwrap());
    }
    registry.upload_finish(&location, &sha256(&bytes), b"").await.expect(201);
    let mount = format!("/v2/other/blobs/uploads/?mount={}&from=switched", sha256(&bytes));
    registry.send(registry.request("POST", &mount)).await.expect(201);
    assert!(registry.blob_get("other", &sha256(&bytes)).await.expect(200).body == bytes);
    let location = registry.upload_open("other").await;
    registry.delete(&location).await.expect(204);
    registry.get(&location).await.expect(404);
    let wrong = with_query(&registry.upload_open("other").await, "digest", &sha256(b"else"));
    registry.send(registry.request("PUT", &wrong).body("this")).await.expect(400);
    assert!(switch.served().iter().all(|count| *count > 5), "{:?}", switch.served());
    // The others keep serving when one replica is killed, and then another.
    cluster.kill(0);
    image.check(&registry, "switched", "v1").await;
    cluster.restart(0).await;
    cluster.kill(1);
    cluster.kill(2);
    image.check(&registry, "switched", &digest).await;
    registry.delete(&format!("/v2/switched/manifests/{digest}")).await.expect(202);
    cluster.restart(1).await;
    for _ in 0..4 {
        registry.manifest_get("switched", "v1").await.expect(404);
    }
}
