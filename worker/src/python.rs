//! Folders of Python packages, some of which contain libraries that a worker loads.

use std::path::{Path, PathBuf};

/// The variables of active virtual environments.
const ENVIRONMENTS: [&str; 2] = ["VIRTUAL_ENV", "CONDA_PREFIX"];

/// The package folders of the active virtual environments.
pub(crate) fn active_packages() -> Vec<PathBuf> {
    let prefixes = ENVIRONMENTS.iter().filter_map(std::env::var_os);
    prefixes.flat_map(|prefix| packages_below(Path::new(&prefix))).collect()
}

/// The package folders below the prefix of a Python, sorted: `PREFIX/lib/python3.11/site-packages`.
pub(crate) fn packages_below(prefix: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
    let pythons = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"));
    let mut folders: Vec<PathBuf> = pythons
        .flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.path().join(name)))
        .filter(|folder| folder.is_dir())
        .collect();
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_folders_are_found() {
        let prefix = tempfile::tempdir().unwrap();
        let lib = prefix.path().join("lib");
        for folder in
            ["python3.12/site-packages", "python3.11/dist-packages", "python2/site-packages", "perl"]
        {
            std::fs::create_dir_all(lib.join(folder)).unwrap();
        }
        let expect = ["python3.11/dist-packages", "python3.12/site-packages"].map(|folder| lib.join(folder));
        assert_eq!(packages_below(prefix.path()), expect);
        assert!(packages_below(Path::new("/nowhere")).is_empty());
    }
}
