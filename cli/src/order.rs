//! The order of a name and a path on the command line. Where one order is documented, the other one works too if
//! only one of them can be meant.

use std::path::Path;

use lode_model::reference::Name;

/// Whether the words for a name and a path are in the other order: the first is a file or a folder here, and the
/// second is not, but can be a name.
pub(crate) fn is_swapped(name: &str, path: &Path) -> bool {
    let can_be_name = path.to_str().is_some_and(|text| text.parse::<Name>().is_ok());
    can_be_name && Path::new(name).exists() && !path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_swapped_only_if_nothing_else_can_be_meant() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().to_str().unwrap();
        assert!(is_swapped(here, Path::new("team/mini-that-is-no-folder:v1")));
        assert!(!is_swapped("team/mini", folder.path()), "the documented order");
        assert!(!is_swapped(here, folder.path()), "two folders");
        assert!(!is_swapped("team/mini", Path::new("./absent")), "neither exists");
        assert!(!is_swapped(here, Path::new("../absent")), "not a name");
    }
}
