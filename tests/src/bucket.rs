//! Copies a prefix of a bucket as an operator's backup tool would: object by object, while servers keep
//! running. It calls the tests' S3 server with curl, which signs the requests.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::command::run_successfully;

/// Copies every object under `from` to the same name under `to`, both `s3://BUCKET/PREFIX`. Returns their
/// number.
///
/// # Panics
///
/// If a request to the S3 server fails.
pub fn copy(from: &str, to: &str) -> usize {
    let scratch = TempDir::new().expect("a scratch folder");
    let file = scratch.path().join("object");
    let (bucket, prefix) = split(from);
    // The signature requires encoded slashes.
    let encoded = format!("{prefix}/").replace('/', "%2F");
    let listed = curl(&[], &format!("{bucket}?list-type=2&prefix={encoded}"));
    assert!(
        listed.contains("<IsTruncated>false</IsTruncated>"),
        "the listing has more than one page: {listed}"
    );
    let keys: Vec<&str> =
        listed.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()).collect();
    let (other_bucket, other_prefix) = split(to);
    for key in &keys {
        let name = key.strip_prefix(prefix).expect("keys under the prefix");
        curl(&["-o", text(&file)], &format!("{bucket}/{key}"));
        curl(&["-T", text(&file)], &format!("{other_bucket}/{other_prefix}{name}"));
    }
    keys.len()
}

fn split(url: &str) -> (&str, &str) {
    let path = url.strip_prefix("s3://").expect("an s3: URL");
    path.split_once('/').expect("a bucket and a prefix")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

fn curl(arguments: &[&str], path: &str) -> String {
    let setting = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is set"));
    let region = setting("AWS_REGION");
    let login = format!("{}:{}", setting("AWS_ACCESS_KEY_ID"), setting("AWS_SECRET_ACCESS_KEY"));
    let mut command = Command::new("curl");
    command
        .args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--user", &login])
        .args(["--aws-sigv4", &format!("aws:amz:{region}:s3"), "-H", "x-amz-content-sha256:UNSIGNED-PAYLOAD"])
        .args(arguments)
        .arg(format!("{}/{path}", setting("AWS_ENDPOINT_URL").trim_end_matches('/')));
    run_successfully(&mut command)
}
