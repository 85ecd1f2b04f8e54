//! The node-local directory of the ranks' code caches: Triton kernels, compiled extensions. Ranks
//! execute what they find there, so no other user may be able to write to it.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use regatta_wire::secret::Secret;
use rustix::process::geteuid;

/// Mode bits by which other users may write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("it belongs to user ID {0}")]
    Owner(u32),
    #[error("it is not a directory, but a file or link of user ID {0}")]
    NotADirectory(u32),
    #[error("other users can write to it (mode {0:04o}, user ID {1})")]
    Mode(u32, u32),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Creates `dir` for this user alone, unless none of the variables' `values` is a path below it. A
/// predictable path in /tmp may have been created by another user, with code to be executed: then
/// the values are changed to a new directory with a random name, or to `None` if there can be none.
/// Returns a warning in that case.
pub fn secure<'a>(
    dir: &str,
    values: impl IntoIterator<Item = &'a mut Option<String>>,
) -> Option<String> {
    let is_below = |value: &str| value.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'));
    let values = values.into_iter().filter(|value| value.as_deref().is_some_and(is_below));
    let mut values: Vec<_> = values.collect();
    if values.is_empty() {
        return None;
    }
    let unusable = create_private(dir).err()?;
    let random = create_random(dir);
    for value in &mut values {
        let moved = |new: &String| Some(format!("{new}{}", value.as_deref()?.strip_prefix(dir)?));
        **value = random.as_ref().ok().and_then(moved);
    }
    let effect = match random {
        Ok(random) => format!("the ranks use {random}; remove {dir}, or set TMPDIR"),
        Err(_) => "its variables are unset, because no other can be created; set TMPDIR".to_owned(),
    };
    Some(format!("cache directory {dir} is not used, because {unusable}: {effect}"))
}

/// Creates a directory, or checks that an existing one is this user's alone.
fn create_private(dir: &str) -> Result<(), Unusable> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).or_else(|error| {
        // A file or link in its place is reported with its owner.
        if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
    })?;
    let found = Path::new(dir).symlink_metadata()?;
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if !found.is_dir() {
        Err(Unusable::NotADirectory(owner))
    } else if owner != geteuid().as_raw() {
        Err(Unusable::Owner(owner))
    } else if mode & WRITABLE_BY_OTHERS != 0 {
        Err(Unusable::Mode(mode, owner))
    } else {
        Ok(())
    }
}

/// Creates a new directory next to `dir`.
fn create_random(dir: &str) -> io::Result<String> {
    let random = Secret::generate()?.to_hex();
    let path = format!("{dir}-{}", &random[..16]);
    DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::PathBuf;

    /// An empty directory, and a path in it.
    fn test_dir(name: &str) -> (PathBuf, String) {
        let base =
            std::env::temp_dir().join(format!("regatta-cache-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&base);
        std::fs::create_dir_all(&base).unwrap();
        let dir = base.join("regatta-ada-77").display().to_string();
        (base, dir)
    }

    fn mode(path: impl AsRef<Path>) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    /// The two variables of a cache directory, and another.
    fn values(dir: &str) -> [Option<String>; 3] {
        [Some(format!("{dir}/triton")), Some(format!("{dir}/inductor")), Some(format!("{dir}2/x"))]
    }

    #[test]
    fn directory_is_created_private_and_reused() {
        let (base, dir) = test_dir("own");
        for _ in 0..2 {
            let mut found = values(&dir);
            assert_eq!(secure(&dir, &mut found), None);
            assert_eq!((found, mode(&dir)), (values(&dir), 0o700));
        }
        assert_eq!(secure(&format!("{dir}-unused"), &mut values(&dir)), None);
        assert_eq!(std::fs::read_dir(&base).unwrap().count(), 1, "no unused directory is created");
        std::fs::remove_dir_all(base).unwrap();
    }

    /// Asserts that a random directory is used instead of `dir`, and that the warning says why.
    fn assert_replaced(dir: &str, why: &str) {
        let mut found = values(dir);
        let warning = secure(dir, &mut found).unwrap();
        assert!(
            warning.contains(&format!("{dir} is not used")) && warning.contains(why),
            "{warning}"
        );
        let [triton, inductor, other] = found.map(Option::unwrap);
        let (random, name) = triton.rsplit_once('/').unwrap();
        assert_eq!((name, inductor), ("triton", format!("{random}/inductor")));
        assert_eq!(other, format!("{dir}2/x"));
        assert!(random.starts_with(&format!("{dir}-")) && warning.contains(random), "{warning}");
        assert_eq!(mode(random), 0o700);
    }

    #[test]
    fn directory_prepared_by_another_user_is_not_used() {
        let (base, dir) = test_dir("planted");
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o770)).unwrap();
        assert_replaced(&dir, "mode 0770");
        if chown(&dir, Some(65_534), None).is_ok() {
            std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
            assert_replaced(&dir, "user ID 65534");
        }
        std::fs::remove_dir(&dir).unwrap();
        symlink("/etc", &dir).unwrap();
        assert_replaced(&dir, "not a directory");
        std::fs::remove_file(&dir).unwrap();
        std::fs::write(&dir, "").unwrap();
        assert_replaced(&dir, "not a directory");
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn variables_are_unset_where_no_directory_can_be_created() {
        let mut found = values("/proc/none/dir");
        let warning = secure("/proc/none/dir", &mut found).unwrap();
        assert!(warning.contains("unset") && warning.contains("TMPDIR"), "{warning}");
        assert_eq!(found, [None, None, Some("/proc/none/dir2/x".to_owned())]);
    }
}
