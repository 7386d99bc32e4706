//! Why a backend cannot be opened, in words. (Rights that are missing: the test of `lariatd` as a process,
//! which may have another user.)

use super::*;

#[test]
fn opening_says_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    assert!(refusal(&[existing(&path, 4096, false)]).contains("does not exist; make it"));
    let kind = BackendKind::File { path: path.clone(), size_bytes: None, create: true };
    let sizeless = BackendConfig { kind, block_bytes: 4096, read_only: false };
    assert!(refusal(&[sizeless]).contains("its size is not given"));
    assert!(!path.exists());
    let device = existing(Path::new("/dev/null"), 4096, false);
    let device = refusal(&[device]);
    assert!(
        device.contains("neither a regular file nor a block device; give the path"),
        "{device}"
    );

    std::fs::write(&path, [0; 4096 + 512]).unwrap();
    assert!(refusal(&[existing(&path, 4096, false)]).contains("4608 bytes, which is not a whole"));
    assert!(refusal(&[existing(&path, 1024, false)]).contains("512 and 4096"));
    assert!(refusal(&[file(&path, 1 << 20, 512)]).contains("the configuration says 1048576"));
    std::fs::write(&path, []).unwrap();
    assert!(refusal(&[existing(&path, 512, false)]).contains("0 bytes, which is not"));
    assert!(refusal(&[memory(0, 512)]).contains("0 bytes is not a whole"));
    assert!(refusal(&[memory(512, 4096)]).contains("512 bytes is not a whole"));

    std::fs::write(&path, [0; 8192]).unwrap();
    let first = StorageSet::open(&[existing(&path, 4096, false)]).unwrap();
    let (place, error) =
        StorageSet::open(&[memory(4096, 512), existing(&path, 4096, false)]).unwrap_err();
    assert_eq!(place, 1);
    assert!(error.to_string().contains("in use by another namespace of this"), "{error}");
    drop(first);
    StorageSet::open(&[existing(&path, 4096, false)]).unwrap();
}

/// What `make` and `existing` say of a path.
fn both(path: &Path) -> String {
    let (made, found) =
        (refusal(&[file(path, 1 << 20, 4096)]), refusal(&[existing(path, 4096, true)]));
    assert_eq!(made, found);
    made
}

#[test]
fn paths_that_lead_nowhere_are_told_where_they_end() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let shown = folder.display();
    assert_eq!(
        both(folder),
        format!(
            "{shown} is a folder; give the path of a file in it: path = \"{shown}/disk.img\", say"
        )
    );
    assert_eq!(
        both(&folder.join("a/b/disk")),
        format!(
            "{shown}/a/b/disk cannot be there, since there is no folder {shown}/a/b; make that (mkdir \
             -p {shown}/a/b), or give another path"
        )
    );
    std::fs::write(folder.join("file"), []).unwrap();
    let under =
        format!("cannot be there, since {shown}/file is a file, no folder; give another path");
    for path in ["file/disk", "file/a/disk"] {
        assert_eq!(both(&folder.join(path)), format!("{shown}/{path} {under}"));
    }
    assert!(both(Path::new("none-here/disk")).contains("there is no folder none-here; make that"));
    // A name that ends as a folder's does; a link to nothing.
    let folder_name = folder.join("new/");
    assert!(refusal(&[file(&folder_name, 1 << 20, 4096)]).contains("is a folder; give"));
    assert!(!folder_name.exists());
    std::os::unix::fs::symlink("nothing", folder.join("link")).unwrap();
    assert!(both(&folder.join("link")).contains("does not exist; make it (truncate"));
}
