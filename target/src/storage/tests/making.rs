//! Files that a start makes, and which of them go when it fails.

use super::*;

#[test]
fn a_set_that_cannot_be_opened_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let [made, old] = ["made", "old"].map(|name| folder.path().join(name));
    std::fs::write(&old, [0; 8192]).unwrap();
    let wrong = existing(&folder.path().join("missing"), 4096, false);
    let set = [file(&made, 1 << 20, 4096), existing(&old, 4096, false), wrong];
    assert_eq!(StorageSet::open(&set).unwrap_err().0, 2);
    assert!(!made.exists() && old.exists());
    // The file that fails is one of them.
    assert!(refusal(&[file(&made, 1000, 4096)]).contains("not a whole number"));
    assert!(!made.exists());
}

#[test]
fn only_what_was_made_and_never_written_is_unmade() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["fresh", "written", "there", "replaced"].map(|name| folder.path().join(name));
    let [fresh, written, there, replaced] = &names;
    std::fs::write(there, []).unwrap();
    File::options().write(true).open(there).unwrap().set_len(1 << 20).unwrap();
    let configs = names.each_ref().map(|path| file(path, 1 << 20, 4096));
    let set = StorageSet::open(&configs).unwrap();
    File::options().write(true).open(written).unwrap().write_all_at(&[1; 4096], 0).unwrap();
    std::fs::remove_file(replaced).unwrap();
    std::fs::write(replaced, []).unwrap();
    assert_eq!(set.unmake(&configs), [fresh.as_path()]);
    assert!(!fresh.exists() && written.exists() && there.exists() && replaced.exists());
}

/// Whoever had the lock may have removed the file: what is served then is what the path leads to.
#[test]
fn a_file_that_was_replaced_before_it_was_locked_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let [path, other] = ["disk", "other"].map(|name| folder.path().join(name));
    std::fs::write(&path, [1; 4096]).unwrap();
    // The lock of a process that is gone, held on by another: such a one is waited for.
    let script = "exec 9<\"$1\"; flock 9; echo; exec sleep 30";
    let mut holder = std::process::Command::new("sh");
    let holder = holder.args(["-c", script, "sh"]).arg(&path);
    let mut holder = holder.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = [0];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut line).unwrap();
    thread::scope(|scope| {
        let opening = scope.spawn(|| StorageSet::open(&[existing(&path, 4096, false)]));
        // Until it waits, it has looked at the path.
        thread::sleep(Duration::from_millis(300));
        assert!(!opening.is_finished());
        std::fs::write(&other, [2; 8192]).unwrap();
        std::fs::rename(&other, &path).unwrap();
        holder.kill().unwrap();
        holder.wait().unwrap();
        let set = opening.join().unwrap().unwrap();
        assert_eq!(set.geometry(BackendId(0)).unwrap().capacity_blocks, 2);
    });
}
