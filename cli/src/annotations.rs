//! Annotations of a new manifest, as the options of commands have them.

use std::collections::BTreeMap;

use crate::error::{Failure, Outcome};

/// The values of `--annotation`. A key has one value.
pub(crate) fn distinct(given: &[(String, String)]) -> Outcome<BTreeMap<String, String>> {
    let mut annotations = BTreeMap::new();
    for (key, value) in given {
        if let Some(other) = annotations.insert(key.clone(), value.clone()) {
            return Err(Failure::new(format!(
                "--annotation has two values for `{key}`: `{other}` and `{value}`"
            )));
        }
    }
    Ok(annotations)
}
