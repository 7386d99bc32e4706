//! The scenarios: scripts in tests/lab, described by their first lines.
//!
//! A script begins with comment lines that say what it proves, then may have settings:
//! `# limit: SECONDS` (under emulation; needed), `# memory: SIZE` (4G), `# needs: NAMES` (see
//! `parts`), `# run: by name` (not part of a run of everything).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::shell;

/// A script and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) script: PathBuf,
    /// Its first sentence.
    pub(crate) about: String,
    pub(crate) limit: Duration,
    /// The guest's memory, as QEMU writes sizes.
    pub(crate) memory: String,
    /// What it needs beside our programs and the kernel.
    pub(crate) needs: Vec<String>,
    /// Runs only when named.
    pub(crate) by_name: bool,
}

/// Every scenario there is, by name.
pub(crate) fn all() -> Result<Vec<Scenario>> {
    let folder = shell::root().join("tests/lab");
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let is_script = path.extension().is_some_and(|extension| extension == "sh");
        if is_script && path.file_stem().is_some_and(|stem| stem != "lib") {
            let text = fs::read_to_string(&path)?;
            found.push(parse(&path, &text)?);
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Those that were named, or all that run without being named.
pub(crate) fn choose(all: Vec<Scenario>, names: &[String]) -> Result<Vec<Scenario>> {
    if names.is_empty() {
        return Ok(all.into_iter().filter(|scenario| !scenario.by_name).collect());
    }
    names
        .iter()
        .map(|name| {
            all.iter().find(|scenario| scenario.name == *name).cloned().with_context(|| {
                let known: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
                format!("there is no scenario {name}; there are: {}", known.join(", "))
            })
        })
        .collect()
}

fn parse(path: &Path, text: &str) -> Result<Scenario> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (mut about, mut limit, mut memory, mut by_name) = (String::new(), None, "4G", false);
    let mut needs = Vec::new();
    for line in text.lines().take_while(|line| line.starts_with('#')) {
        let line = line.trim_start_matches('#').trim();
        if let Some(seconds) = line.strip_prefix("limit:") {
            let seconds = seconds.trim().parse().with_context(|| format!("{name}: {line}"))?;
            limit = Some(Duration::from_secs(seconds));
        } else if let Some(size) = line.strip_prefix("memory:") {
            memory = size.trim();
        } else if let Some(names) = line.strip_prefix("needs:") {
            needs.extend(names.split_whitespace().map(str::to_owned));
        } else if line == "run: by name" {
            by_name = true;
        } else if !line.starts_with('!') {
            about = format!("{about} {line}");
        }
    }
    let Some(limit) = limit else {
        bail!("{} has no line '# limit: SECONDS' at its top", path.display());
    };
    let about = about.split(". ").next().unwrap_or_default().trim().trim_end_matches('.').into();
    let script = path.to_owned();
    Ok(Scenario { name, script, about, limit, memory: memory.into(), needs, by_name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scripts_first_lines_describe_it() {
        let text = "# The kernel connects\n# to us. And more.\n# limit: 90\n# memory: 2G\n\
                    # needs: siw\n# run: by name\nset -u\n# limit: 7\n";
        let scenario = parse(Path::new("/somewhere/one.sh"), text).expect("it is complete");
        assert_eq!(scenario.name, "one");
        assert_eq!(scenario.about, "The kernel connects to us");
        assert_eq!(scenario.limit, Duration::from_secs(90));
        assert_eq!(scenario.memory, "2G");
        assert_eq!(scenario.needs, ["siw"]);
        assert!(scenario.by_name);
    }

    #[test]
    fn a_script_without_a_limit_is_refused() {
        let error = parse(Path::new("/somewhere/two.sh"), "# Forever.\n").expect_err("no limit");
        assert!(error.to_string().contains("limit"), "{error}");
    }

    #[test]
    fn scenarios_of_the_repository_are_complete() {
        let scenarios = all().expect("each has its lines");
        assert!(scenarios.iter().any(|scenario| scenario.name == "smoke"));
        let nothing: [String; 0] = [];
        let chosen = choose(scenarios.clone(), &nothing).expect("no name can be wrong");
        assert!(chosen.iter().all(|scenario| !scenario.by_name));
        let error = choose(scenarios, &["none".to_owned()]).expect_err("no such scenario");
        assert!(error.to_string().contains("smoke"), "{error}");
    }
}
