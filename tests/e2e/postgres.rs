//! Operating Postgres: TLS connections, a full disk, and a backup with `pg_dump` and a copy of the bucket.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lode_tests::artifact::{Image, fresh_seed, random_bytes};
use lode_tests::bucket;
use lode_tests::clients::is_root;
use lode_tests::command::run_successfully;
use lode_tests::disk::SmallDisk;
use lode_tests::oci::IMAGE_MANIFEST;
use lode_tests::postgres::Postgres;
use lode_tests::report::skip;
use lode_tests::server::{Folder, Options};
use lode_tests::services::{Backends, psql, s3_prefix};
use serde_json::json;

/// Creates a certificate for 127.0.0.1 with its key, `NAME.crt` and `NAME.key`. Returns the path of the CA
/// certificate.
fn certificate(folder: &Path, name: &str) -> PathBuf {
    let file = |kind: &str| folder.join(format!("{name}.{kind}"));
    let openssl = |arguments: &[&str], files: &[(&str, &str)]| {
        let mut command = Command::new("openssl");
        command.args(arguments);
        for (option, kind) in files {
            command.arg(option).arg(file(kind));
        }
        run_successfully(&mut command);
    };
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let root = [&["req", "-x509", "-days", "2", "-subj", "/CN=lode-tests root"], &key[..]].concat();
    openssl(&root, &[("-keyout", "root.key"), ("-out", "root.crt")]);
    openssl(
        &[&["req", "-subj", "/CN=lode-tests"], &key[..]].concat(),
        &[("-keyout", "key"), ("-out", "csr")],
    );
    fs::write(file("ext"), "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n").unwrap();
    let signed =
        [("-CA", "root.crt"), ("-CAkey", "root.key"), ("-in", "csr"), ("-extfile", "ext"), ("-out", "crt")];
    openssl(&["x509", "-req", "-days", "2", "-set_serial", "1"], &signed);
    file("root.crt")
}

fn with_database(url: String) -> Options {
    Options::new().arg("--database").arg(url).env("LODE_DATABASE_WAIT", "2s")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_is_reached_over_tls() {
    let certificates = tempfile::tempdir().unwrap();
    let ours = certificate(certificates.path(), "ours");
    let other = certificate(certificates.path(), "other");
    let server = Postgres::start("postgres::an_index_that_is_reached_over_tls_alone", |data| {
        for name in ["ours.crt", "ours.key"] {
            fs::copy(certificates.path().join(name), data.join(name)).unwrap();
        }
        make_private(&data.join("ours.key"));
        let settings = "ssl = on\nssl_cert_file = 'ours.crt'\nssl_key_file = 'ours.key'\n";
        append(&data.join("postgresql.conf"), settings);
        // Refuse connections without TLS, on the Unix socket too.
        fs::write(data.join("pg_hba.conf"), "hostssl all all 127.0.0.1/32 trust\n").unwrap();
    });
    let Some(server) = server else { return };
    let root = |path: &Path| format!("?sslmode=verify-full&sslrootcert={}", path.display());

    let folder = Folder::new();
    let lode = folder.start(with_database(server.url(&root(&ours)))).await;
    let image = Image::random(fresh_seed(), 2, 10_000);
    image.push(&lode.registry(), "tls", "v1").await;
    image.check(&lode.registry(), "tls", "v1").await;
    let spoken = psql(
        &server.url("?sslmode=require"),
        "select distinct ssl from pg_stat_ssl join pg_stat_activity using (pid) where application_name = 'lode'",
    );
    assert_eq!(spoken.trim(), "t");
    lode.stop().await;
    // The same without verifying the server's certificate.
    let lode = folder.start(with_database(server.url("?sslmode=require"))).await;
    image.check(&lode.registry(), "tls", "v1").await;
    lode.stop().await;
    // The wrong CA certificate, then no TLS.
    for parameters in [root(&other), "?sslmode=disable".to_owned()] {
        let (status, output) = folder.start_refused(with_database(server.url(&parameters))).await;
        assert!(!status.success(), "{parameters}: {output}");
        assert!(output.contains("error:") && !output.contains("panicked"), "{parameters}: {output}");
    }
}

fn append(path: &Path, text: &str) {
    let before = fs::read_to_string(path).unwrap();
    fs::write(path, before + text).unwrap();
}

fn make_private(path: &Path) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(path, mode).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_of_the_database_acknowledges_nothing_and_keeps_serving() {
    let test = "postgres::a_full_disk_of_the_database";
    if !is_root() {
        return skip(test, "only root can mount a small file system");
    }
    let outer = Folder::new();
    let disk = SmallDisk::mount(outer.path().join("disk"), 24);
    let Some(server) = Postgres::start(test, |_| {}) else { return };
    let tables = disk.path().join("tables");
    fs::create_dir(&tables).unwrap();
    make_traversable(outer.path());
    server.chown_to_server(&tables);
    // Only the tables are on the small disk: Postgres stops if its write-ahead log does not fit.
    psql(&server.url(""), &format!("create tablespace small location '{}'", tables.display()));
    let lode =
        Folder::new().start(with_database(server.url("?options=-c%20default_tablespace%3Dsmall"))).await;
    let registry = lode.registry();
    let image = Image::random(fresh_seed(), 2, 10_000);
    image.push(&registry, "full", "v1").await;

    fs::write(disk.path().join("ballast"), vec![7; 4 << 20]).unwrap();
    let large = |n: u64| {
        // Incompressible, so that the database needs space for all of it.
        let note: String = random_bytes(n, 500_000).iter().map(|byte| char::from(b'0' + byte % 64)).collect();
        Image::of(image.config.clone(), image.layers.clone(), &json!({ "annotations": { "note": note } }))
    };
    let mut held = Vec::new();
    let refused = loop {
        let (n, next) = (held.len() as u64, large(held.len() as u64));
        let response = registry.manifest_put("full", &format!("n{n}"), IMAGE_MANIFEST, &next.manifest).await;
        if response.status != 201 {
            break response;
        }
        held.push(next);
        assert!(held.len() < 200, "the disk is still not full");
    };
    assert!(refused.status >= 500 && refused.code().is_some(), "{} {}", refused.status, refused.text());
    // The refused manifest is not stored; the acknowledged ones are.
    registry.manifest_get("full", &format!("n{}", held.len())).await.expect(404);
    for _ in 0..3 {
        let response = registry.manifest_put("full", "more", IMAGE_MANIFEST, &large(999).manifest).await;
        assert!(response.status >= 500, "{} {}", response.status, response.text());
    }
    image.check(&registry, "full", "v1").await;
    for (n, image) in held.iter().enumerate() {
        image.check(&registry, "full", &format!("n{n}")).await;
    }
    registry.get("/healthz").await.expect(200);

    fs::remove_file(disk.path().join("ballast")).unwrap();
    large(999).push(&registry, "full", "after").await;
    large(999).check(&registry, "full", "after").await;
    lode.lode().run(&["fsck", "--verify"]).await.expect_success();
    assert!(!lode.output().contains("panicked"), "{}", lode.output());
    drop(lode);
    drop(server); // before its disk
}

/// Lets the database's user traverse the folder.
fn make_traversable(path: &Path) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(path, mode).unwrap();
}

/// A new database. Dropping it drops the database.
struct Database {
    server: String,
    name: String,
}

impl Database {
    fn create(server: &str) -> Self {
        let name = format!("e2e_{:016x}", fresh_seed());
        psql(server, &format!("create database {name}"));
        Self { server: server.to_owned(), name }
    }

    fn url(&self) -> String {
        let (server, _) = self.server.rsplit_once('/').unwrap();
        format!("{server}/{}", self.name)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        psql(&self.server, &format!("drop database {} with (force)", self.name));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_and_a_copy_of_the_bucket_are_a_backup() {
    let test = "postgres::a_dump_and_a_copy_of_the_bucket_are_a_backup";
    let (Some(backing), Ok(server)) = (Backends::shared(test), std::env::var("LODE_TEST_POSTGRES")) else {
        return;
    };
    let database = Database::create(&server);
    let from = Backends { database: Some(database.url()), ..backing };
    let lode = Folder::new().start(Options::new().with_backends(&from).env("LODE_GC_INTERVAL", "1s")).await;
    let registry = lode.registry();
    let image = Image::random(fresh_seed(), 2, 300_000);
    let large = Image::random(fresh_seed(), 1, 12_000_000); // more than one part
    let gone = Image::random(fresh_seed(), 1, 20_000);
    image.push(&registry, "backup/one", "v1").await;
    large.push(&registry, "backup/two", "v1").await;
    let digest = gone.push(&registry, "backup/two", "v2").await;
    let session = registry.upload_open("backup/one").await;
    registry.upload_append(&session, 0, &random_bytes(fresh_seed(), 100_000)).await.expect(202);

    // In the order of docs/guide/backup.md: the database first.
    let scratch = tempfile::tempdir().unwrap();
    let dump = scratch.path().join("lode.dump");
    run_successfully(
        Command::new("pg_dump").arg("--format=custom").arg("--file").arg(&dump).arg(database.url()),
    );
    // The server keeps running. Later pushes are in neither copy, and deleted content is kept for the grace
    // period.
    let later = Image::random(fresh_seed(), 1, 10_000);
    later.push(&registry, "backup/later", "v1").await;
    registry.delete(&format!("/v2/backup/two/manifests/{digest}")).await.expect(202);
    lode.lode().run(&["gc"]).await.expect_success();
    // Then the blobs.
    let to = s3_prefix(test).expect("the bucket is there");
    assert!(bucket::copy(from.storage.as_ref().unwrap(), &to) > 6);
    drop(lode);

    let restored = Database::create(&server);
    run_successfully(
        Command::new("pg_restore").arg("--no-owner").arg("--dbname").arg(restored.url()).arg(&dump),
    );
    let backing = Backends { database: Some(restored.url()), storage: Some(to), ..from };
    let lode = Folder::new().start(Options::new().with_backends(&backing)).await;
    let report = lode.lode().run(&["fsck", "--verify", "--json"]).await.expect_success().json();
    assert_eq!(report["damage"], json!([]));
    let registry = lode.registry();
    image.check(&registry, "backup/one", "v1").await;
    large.check(&registry, "backup/two", "v1").await;
    gone.check(&registry, "backup/two", "v2").await;
    registry.manifest_get("backup/later", "v1").await.expect(404);
    // Clients push missing content again.
    later.push(&registry, "backup/later", "v1").await;
    later.check(&registry, "backup/later", "v1").await;
    drop(lode);
}
