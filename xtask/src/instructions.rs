//! `cargo xtask instructions`: how many instructions a 4 KiB request costs the initiator and the
//! target in user space, counted by callgrind, and whether that has grown.
//!
//! Runs `tests/examples/stack_cost.rs` (both ends on one thread, null backend, time in steps) once for
//! each workload and end; callgrind collects in that end's turns alone. The totals stand in
//! `docs/instructions.tsv`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::table::Table;
use crate::{setup, shell};

/// What can be chosen.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write what was counted to docs/instructions.tsv: the change is meant.
    #[arg(long)]
    accept: bool,
    /// Functions to show for each end.
    #[arg(long, default_value_t = 12)]
    functions: usize,
}

const FILE: &str = "docs/instructions.tsv";
/// A total may grow by so much.
const TOLERANCE: f64 = 0.05;
/// Requests per run; the first tenth does not count.
const REQUESTS: &str = "4000";
const WORKLOADS: [(&str, &str); 4] =
    [("read", "1"), ("read", "32"), ("write", "1"), ("write", "32")];
const ENDS: [(&str, &str); 2] =
    [("initiator", "measured_initiator_turn"), ("target", "measured_target_turn")];

/// Instructions per request: by workload and end.
type Totals = BTreeMap<String, f64>;

pub(crate) fn run(options: &Options) -> Result<()> {
    setup::install(setup::BUILD)?;
    setup::install(&[setup::VALGRIND])?;
    let example = ["--package", "lariat-tests", "--example", "stack_cost"];
    shell::run(shell::cargo(&["build", "--release", "--quiet"]).args(example))?;
    let program = shell::root().join("build/release/examples/stack_cost");
    let folder = tempfile::tempdir()?;

    let mut totals = Totals::new();
    let mut by_end: [BTreeMap<String, [f64; 4]>; 2] = Default::default();
    for (column, (kind, depth)) in WORKLOADS.into_iter().enumerate() {
        for ((end, turn), functions) in ENDS.into_iter().zip(&mut by_end) {
            let costs = count(&program, folder.path(), kind, depth, turn)?;
            totals.insert(key(kind, depth, end), costs.values().sum());
            for (function, cost) in costs {
                functions.entry(function).or_default()[column] += cost;
            }
        }
    }
    for ((end, _), functions) in ENDS.into_iter().zip(by_end) {
        println!("{}", functions_table(end, functions, options.functions));
    }
    let file = shell::root().join(FILE);
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let known = parse(&text);
    println!("{}", totals_table(&known, &totals));
    if options.accept {
        std::fs::write(&file, render(&totals)?)?;
        println!("written to {FILE}");
        return Ok(());
    }
    if let Some(reason) = incomparable(&text, &compiler(), &processor()) {
        println!("skipped: instructions: {reason}");
        return Ok(());
    }
    judge(&known, &totals)
}

/// Why what is counted here cannot be held against the file: another compiler makes other code, and
/// the C library and the ICRC choose theirs by the processor.
fn incomparable(text: &str, compiler: &str, processor: &str) -> Option<String> {
    [("Compiler", compiler), ("Processor", processor)].into_iter().find_map(|(what, here)| {
        let prefix = format!("# {what}: ");
        let there = text.lines().find_map(|line| line.strip_prefix(prefix.as_str()))?;
        (there != here).then(|| {
            format!("{FILE} was counted with {there}, here it is {here}: nothing is judged")
        })
    })
}

fn key(kind: &str, depth: &str, end: &str) -> String {
    format!("{kind}\t{depth}\t{end}")
}

/// One run: instructions per request, by function.
fn count(
    program: &Path,
    folder: &Path,
    kind: &str,
    depth: &str,
    turn: &str,
) -> Result<BTreeMap<String, f64>> {
    let out = folder.join("callgrind.out");
    let mut command = shell::command("valgrind", &["--tool=callgrind", "--quiet"]);
    command
        .arg(format!("--toggle-collect=*{turn}*"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args([kind, "4096", depth, REQUESTS, "null", "8192", "udp", "steps"]);
    let said = shell::capture(&mut command)?;
    let measured: f64 = said
        .rsplit_once(", ")
        .and_then(|(_, last)| last.strip_suffix(" requests measured\n"))
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("stack_cost did not say how much it measured: {said}"))?;
    let text = std::fs::read_to_string(&out)
        .with_context(|| format!("callgrind left no {}", out.display()))?;
    let costs = by_function(&text);
    if costs.is_empty() {
        bail!("callgrind saw no call of {turn}: has stack_cost been changed?");
    }
    Ok(costs.into_iter().map(|(name, cost)| (name, cost as f64 / measured)).collect())
}

/// Sums up each function's own cost in callgrind's format: cost lines (`line cost`) follow the `fn=`
/// they belong to; one that follows `calls=` is what the callee took.
fn by_function(text: &str) -> BTreeMap<String, u64> {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut costs = BTreeMap::new();
    let (mut current, mut of_callee) = ("", false);
    for line in text.lines() {
        if let Some((word, rest)) = line.split_once('=')
            && let "fn" | "cfn" = word
        {
            // `(12) name` the first time, `(12)` from then on.
            let (number, name) = rest.split_once(' ').unwrap_or((rest, ""));
            if !name.is_empty() {
                names.insert(number, name);
            }
            if word == "fn" {
                current = names.get(number).copied().unwrap_or("?");
            }
        } else if line.starts_with("calls=") {
            of_callee = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first))
            && !core::mem::take(&mut of_callee)
            && let Some(cost) = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok())
            && !current.is_empty()
        {
            *costs.entry(short(current)).or_default() += cost;
        }
    }
    costs.retain(|_, cost| *cost > 0);
    costs
}

/// A name without generic arguments, hash and our crates' prefixes: what fits into a table.
fn short(name: &str) -> String {
    let mut plain = String::new();
    let mut depth = 0_u32;
    for letter in name.trim_start_matches('<').chars() {
        match letter {
            '<' => depth += 1,
            '>' if depth > 0 => depth -= 1,
            // The end of `<Type as Trait>`.
            '>' => {}
            _ if depth == 0 => plain.push(letter),
            _ => {}
        }
    }
    let plain = match plain.rsplit_once("::h") {
        Some((rest, hash)) if hash.len() == 16 && hash.chars().all(|c| c.is_ascii_hexdigit()) => {
            rest
        }
        _ => &plain,
    };
    // `'2` marks recursion.
    let plain = plain.split('\'').next().unwrap_or(plain);
    plain.replace("::::", "::").trim_start_matches("lariat_").to_owned()
}

fn functions_table(end: &str, functions: BTreeMap<String, [f64; 4]>, most: usize) -> String {
    let mut rows: Vec<_> = functions.into_iter().collect();
    rows.sort_by(|(_, one), (_, other)| {
        other.iter().sum::<f64>().total_cmp(&one.iter().sum::<f64>())
    });
    let title = format!("{end}: own instructions per 4 KiB request");
    let mut table =
        Table::new(&[&title, "read, depth 1", "read, 32", "write, depth 1", "write, 32"]);
    let mut rest = [0.0; 4];
    for (place, (name, costs)) in rows.into_iter().enumerate() {
        if place < most {
            let numbers = costs.iter().map(|cost| format!("{cost:.0}"));
            table.row([name].into_iter().chain(numbers).collect());
        } else {
            rest.iter_mut().zip(costs).for_each(|(sum, cost)| *sum += cost);
        }
    }
    let numbers = rest.iter().map(|cost| format!("{cost:.0}"));
    table.row(["all others".to_owned()].into_iter().chain(numbers).collect());
    table.markdown()
}

fn totals_table(known: &Totals, counted: &Totals) -> String {
    let mut table = Table::new(&["workload", "depth", "end", "instructions", "known", "change"]);
    for (key, now) in counted {
        let mut row: Vec<String> = key.split('\t').map(str::to_owned).collect();
        row.push(format!("{now:.0}"));
        match known.get(key) {
            Some(before) => row.extend([
                format!("{before:.0}"),
                format!("{:+.1} %", (now / before - 1.0) * 100.0),
            ]),
            None => row.extend(["-".to_owned(), "-".to_owned()]),
        }
        table.row(row);
    }
    table.markdown()
}

/// Fails if a total has grown too much, or is not known.
fn judge(known: &Totals, counted: &Totals) -> Result<()> {
    let mut complaints = String::new();
    for (key, now) in counted {
        let words = key.replace('\t', " ");
        match known.get(key) {
            Some(before) if *now > before * (1.0 + TOLERANCE) => writeln!(
                complaints,
                "{words}: {now:.0} instructions per request, {before:.0} are known"
            )?,
            Some(_) => {}
            None => writeln!(complaints, "{words}: {FILE} has no such line")?,
        }
    }
    if complaints.is_empty() {
        return Ok(());
    }
    bail!(
        "the data path got more expensive, by more than {:.0} %:\n{complaints}find the reason in the \
         tables above, or, if it is worth that, say so with: cargo xtask instructions --accept",
        TOLERANCE * 100.0,
    )
}

fn compiler() -> String {
    shell::capture(&mut shell::command("rustc", &["--version"]))
        .map_or("unknown".to_owned(), |version| version.trim().to_owned())
}

/// The architecture, and those features that valgrind passes on and that choose other code.
fn processor() -> String {
    let facts = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = facts.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |feature: &&str| flags.split_ascii_whitespace().any(|flag| flag == *feature);
    let features = ["avx2", "bmi2", "pclmulqdq"].into_iter().filter(has);
    [std::env::consts::ARCH].into_iter().chain(features).collect::<Vec<_>>().join(" ")
}

fn render(totals: &Totals) -> Result<String> {
    let mut text = format!(
        "# Instructions in user space per 4 KiB request (null backend, soft fabric), counted by `cargo \
         xtask instructions`.\n# Compiler: {}\n# Processor: {}\n# workload\tdepth\tend\tinstructions\n",
        compiler(),
        processor()
    );
    for (key, cost) in totals {
        writeln!(text, "{key}\t{cost:.0}")?;
    }
    Ok(text)
}

fn parse(text: &str) -> Totals {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once('\t'))
        .filter_map(|(key, cost)| Some((key.to_owned(), cost.parse().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_costs_are_told_from_callees() {
        let text = "version: 1\nevents: Ir\nfn=(1) alpha::work::h0123456789abcdef\n10 5\n+1 7\n\
                    cfn=(2) beta\ncalls=3 20\n+2 1000\n* 1\nfn=(2)\n20 900\nfn=(1)\n12 2\n";
        let costs = by_function(text);
        assert_eq!(costs, [("alpha::work".to_owned(), 15), ("beta".to_owned(), 900)].into());
    }

    #[test]
    fn names_fit_into_a_table() {
        for (long, plain) in [
            (
                "<lariat_fabric::soft::SoftFabric<N> as Fabric>::poll",
                "fabric::soft::SoftFabric as Fabric::poll",
            ),
            ("lariat_roce::Qp::transmit<M>'2", "roce::Qp::transmit"),
            ("__memcpy_avx_unaligned_erms", "__memcpy_avx_unaligned_erms"),
        ] {
            assert_eq!(short(long), plain);
        }
    }

    #[test]
    fn growth_and_gaps_are_complained_of() {
        let known = parse("# a comment\nread\t1\ttarget\t1000\n");
        let counted = |cost: f64| Totals::from([("read\t1\ttarget".to_owned(), cost)]);
        assert!(judge(&known, &counted(1040.0)).is_ok());
        let error = judge(&known, &counted(1060.0)).unwrap_err().to_string();
        assert!(error.contains("read 1 target: 1060 instructions per request, 1000 are known"));
        assert!(error.contains("--accept"));
        assert!(judge(&Totals::new(), &counted(1.0)).is_err());
    }

    #[test]
    fn another_compiler_or_processor_is_not_judged() {
        let text = render(&Totals::new()).unwrap();
        let here = || (compiler(), processor());
        assert_eq!(incomparable(&text, &here().0, &here().1), None);
        let older = incomparable(&text, "rustc 1.0.0", &here().1).unwrap();
        assert!(older.contains("here it is rustc 1.0.0"), "{older}");
        let other = incomparable(&text, &here().0, "aarch64").unwrap();
        assert!(other.contains("here it is aarch64"), "{other}");
        assert_eq!(incomparable("read\t1\ttarget\t9\n", "a", "b"), None, "a file without names");
    }

    #[test]
    fn what_is_written_is_read_again() {
        let totals = Totals::from([(key("write", "32", "target"), 1234.0)]);
        assert_eq!(parse(&render(&totals).unwrap()), totals);
    }
}
