//! Names that say nothing.

use super::{File, Finding};

/// A module is one noun; these are a drawer for what nobody named.
const BANNED: &[&str] = &["common", "helper", "helpers", "manager", "misc", "util", "utils"];

/// Files and folders with a banned name.
pub fn banned(file: &File) -> Vec<Finding> {
    let parts = file.path.split('/').map(|part| part.split('.').next().unwrap_or(part));
    let bad = parts.filter(|part| {
        BANNED.contains(part) || part.ends_with("_manager") || part.ends_with("_utils")
    });
    bad.map(|name| file.fault(1, format!("`{name}` names nothing: say what is in it"))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn banned_names_are_refused_as_files_and_as_folders() {
        for path in ["crates/a/src/utils.rs", "crates/common/src/lib.rs", "a/slot_manager.rs"] {
            assert_eq!(banned(&planted(path, "")).len(), 1, "{path}");
        }
        assert!(banned(&planted("crates/a/src/commonplace.rs", "")).is_empty());
    }
}
