//! Servers and clients of the benchmark as child processes: tied to cores, ended by their own id on
//! every path, waited for with a limit, their processor time read from /proc. Calls the operating
//! system; used by `peers` and `limits`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::peer::Measured;
use super::results::Sample;
use crate::shell;

/// Between two looks at a child.
const TICK: Duration = Duration::from_millis(10);
const STOP_LIMIT: Duration = Duration::from_secs(10);
const START_LIMIT: Duration = Duration::from_secs(20);
/// The programs need so long before they put load on anything, at most.
const CLIENT_START: Duration = Duration::from_millis(350);
/// The second look at processor times comes so long before the end.
const LAST_LOOK: Duration = Duration::from_millis(50);
/// What clients run before they measure.
pub(crate) const RAMP: Duration = Duration::from_millis(200);
/// For starting, ending and reporting, on top of the time measured.
const CLIENT_SLACK: Duration = Duration::from_secs(30);
/// How long a server is watched for its idle time, after a pause in which it settles.
const SETTLE: Duration = Duration::from_millis(500);
const IDLE_TIME: Duration = Duration::from_secs(2);

/// Which cores servers and clients get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placing {
    /// The server's core and the client's; None: wherever the scheduler puts them.
    pub(crate) cores: Option<(usize, usize)>,
}

impl Placing {
    /// A core for each, where there are two.
    pub(crate) fn pinned() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { cores: Some((0, usize::from(cores > 1))) }
    }

    /// In words.
    pub(crate) fn describe(self) -> String {
        match self.cores {
            Some((server, client)) => {
                format!("servers on core {server}, clients on core {client} (taskset)")
            }
            None => "wherever the scheduler puts them".into(),
        }
    }

    /// The prefix of a server.
    pub(crate) fn server(self) -> Vec<String> {
        prefix(self.cores.map(|(server, _)| server))
    }

    /// The prefix of a client.
    pub(crate) fn client(self) -> Vec<String> {
        prefix(self.cores.map(|(_, client)| client))
    }
}

fn prefix(core: Option<usize>) -> Vec<String> {
    core.map_or_else(Vec::new, |core| vec!["taskset".into(), "-c".into(), core.to_string()])
}

/// A command line: words, joined as a person would type them.
#[derive(Clone, Debug)]
pub(crate) struct Line(pub(crate) Vec<String>);

impl Line {
    /// From a prefix such as taskset's, a program, and its arguments.
    pub(crate) fn new<I, S>(prefix: Vec<String>, program: &str, arguments: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        let mut words = prefix;
        words.push(program.into());
        words.extend(arguments.into_iter().map(Into::into));
        Self(words)
    }

    /// For the report: paths of this repository are shown from its root.
    pub(crate) fn show(&self) -> String {
        let root = format!("{}/", shell::root().display());
        let quoted = self.0.iter().map(|word| {
            let word = word.replace(&root, "");
            if word.is_empty() || word.contains([' ', '\'', '$', ';', '&']) {
                format!("'{}'", word.replace('\'', "'\\''"))
            } else {
                word
            }
        });
        quoted.collect::<Vec<_>>().join(" ")
    }

    /// The child ends with us even if we are killed: `setpriv` sets that and becomes the program.
    fn command(&self) -> Command {
        let mut command = match shell::find("setpriv") {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL"]).args(&self.0);
                command
            }
            None => {
                let mut command = Command::new(self.0.first().map_or("", String::as_str));
                command.args(self.0.get(1..).unwrap_or_default());
                command
            }
        };
        command.stdin(Stdio::null()).current_dir(shell::root());
        command
    }
}

/// SIGINT, SIGTERM and SIGHUP become an error of the next wait, so that everything is taken down.
static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on signals end the benchmark in order; a second one ends it at once.
pub(crate) fn catch_signals() -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // The first sets the flag, the second finds it set.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(flag))?;
        signal_hook::flag::register(signal, Arc::clone(flag))?;
    }
    Ok(())
}

/// An error once the user wants an end.
pub(crate) fn check_signals() -> Result<()> {
    if interrupted() {
        bail!("interrupted");
    }
    Ok(())
}

/// Whether the user wants an end.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Sleeps, but not through a signal.
pub(crate) fn sleep(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        check_signals()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(TICK));
    }
}

/// Runs a program that prepares something, for a minute at most.
pub(crate) fn prepare(program: &str, arguments: &[&str]) -> Result<()> {
    let words = [&["60", program], arguments].concat();
    shell::capture(&mut shell::command("timeout", &words))?;
    Ok(())
}

/// A lock file, held while one measurement runs on a machine that others use too.
pub(crate) struct Lock(Child);

impl Lock {
    /// Waits for it. `flock` holds it for as long as its `cat` has something to wait for: us.
    pub(crate) fn claim(file: &Path) -> Result<Self> {
        let mut child = Command::new("flock")
            .arg(file)
            .arg("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start flock")?;
        let asked = child.stdin.as_mut().map(|stdin| stdin.write_all(b"here\n"));
        let answer = child.stdout.take().map(|stdout| {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).map(|_| line)
        });
        let lock = Self(child);
        match (asked, answer) {
            (Some(Ok(())), Some(Ok(line))) if line == "here\n" => Ok(lock),
            _ => bail!("cannot lock {}", file.display()),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Its end of file.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A running server. Dropping it kills it.
pub(crate) struct Server {
    child: Child,
    line: Line,
    log: PathBuf,
}

impl Server {
    /// Starts it, its output in a log of this name.
    pub(crate) fn start(line: Line, folder: &Path, name: &str) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let output = File::create(&log)?;
        let child = line
            .command()
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", line.show()))?;
        Ok(Self { child, line, log })
    }

    /// Waits until it is ready; an error with its output if it ends before or takes too long.
    pub(crate) fn wait_ready(&mut self, mut ready: impl FnMut(&str) -> bool) -> Result<()> {
        let start = Instant::now();
        loop {
            check_signals()?;
            let said = self.output();
            if ready(&said) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended at once ({status}):\n{said}", self.line.show());
            }
            if start.elapsed() > START_LIMIT {
                bail!("{} was not ready within {START_LIMIT:?}:\n{said}", self.line.show());
            }
            std::thread::sleep(TICK);
        }
    }

    /// What it printed so far.
    pub(crate) fn output(&self) -> String {
        fs::read(&self.log)
            .map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its command line.
    pub(crate) fn show(&self) -> String {
        self.line.show()
    }

    /// Percent of a core that it uses when nobody asks anything of it.
    pub(crate) fn idle_percent(&self) -> Result<f64> {
        sleep(SETTLE)?;
        let (before, start) = (run_time(self.pid())?, Instant::now());
        sleep(IDLE_TIME)?;
        let used = run_time(self.pid())?.saturating_sub(before);
        Ok(used.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0)
    }

    /// Ends it: SIGTERM, and SIGKILL when that does not help.
    pub(crate) fn stop(mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            signal(self.pid(), "TERM")?;
            if wait(&mut self.child, STOP_LIMIT)?.is_none() {
                self.kill();
            }
        }
        Ok(())
    }

    /// Ends it without asking: for those that ignore SIGTERM.
    pub(crate) fn end(mut self) {
        self.kill();
    }

    /// Stops its processes for a while, or lets them go on: for servers that never sleep.
    pub(crate) fn pause(&self, pause: bool) -> Result<()> {
        signal(self.pid(), if pause { "STOP" } else { "CONT" })
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn signal(pid: u32, name: &str) -> Result<()> {
    let flag = format!("-{name}");
    shell::capture(&mut shell::command("kill", &[&flag, &pid.to_string()]))?;
    Ok(())
}

/// Waits for the end of a child, not reaping what is still running at the limit.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<std::process::ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            return Ok(None);
        }
        std::thread::sleep(TICK);
    }
}

/// What a client left.
pub(crate) struct Ran {
    pub(crate) output: String,
    pub(crate) command: String,
    /// Cores kept busy while it measured.
    pub(crate) client_cores: Option<f64>,
    pub(crate) server_cores: Option<f64>,
}

impl Ran {
    /// The measurement that it was; `parse` reads the client's report.
    pub(crate) fn measured(self, parse: impl FnOnce(&str) -> Result<Sample>) -> Result<Measured> {
        let (client_cores, server_cores) = (self.client_cores, self.server_cores);
        let sample = Sample { client_cores, server_cores, ..parse(&self.output)? };
        Ok(Measured { command: self.command, sample })
    }
}

/// A child that is killed if it is left.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a client that measures for `seconds` after [`RAMP`], and looks at the processor time of both
/// sides in the midst of it.
pub(crate) fn run_client(
    line: &Line,
    folder: &Path,
    seconds: u32,
    server: Option<u32>,
) -> Result<Ran> {
    let (out, err) = (folder.join("client.out"), folder.join("client.err"));
    let start = Instant::now();
    let child = line
        .command()
        .stdout(File::create(&out)?)
        .stderr(File::create(&err)?)
        .spawn()
        .with_context(|| format!("cannot start {}", line.show()))?;
    let mut guard = Guard(child);
    let client = guard.0.id();
    let time = Duration::from_secs(u64::from(seconds));
    // iscsi-perf has no ramp, so the second look is taken before the shortest client ends.
    let (first, second) = (start + CLIENT_START + RAMP, start + time - LAST_LOOK);
    let limit = start + CLIENT_START + RAMP + time + CLIENT_SLACK;
    let mut looks = Vec::new();
    let status = loop {
        check_signals()?;
        if let Some(status) = guard.0.try_wait()? {
            break status;
        }
        let now = Instant::now();
        let due = if looks.is_empty() { first } else { second };
        if looks.len() < 2 && now >= due {
            looks.push((now, processor_time(client), server.map(processor_time)));
        }
        if now > limit {
            bail!("{} did not end in time", line.show());
        }
        std::thread::sleep(TICK);
    };
    let output = String::from_utf8_lossy(&fs::read(&out)?).into_owned();
    if !status.success() {
        let complaint = fs::read_to_string(&err).unwrap_or_default();
        bail!("{} failed ({status})\n{}", line.show(), tail(&format!("{output}{complaint}")));
    }
    let (client_cores, server_cores) = match looks.as_slice() {
        [(at, client, server), (later, client_later, server_later)] => {
            let seconds = later.duration_since(*at).as_secs_f64();
            let cores = |before: Option<Duration>, after: Option<Duration>| {
                Some(after?.checked_sub(before?)?.as_secs_f64() / seconds)
            };
            let server = match (server, server_later) {
                (Some(before), Some(after)) => cores(*before, *after),
                _ => Some(0.0),
            };
            (cores(*client, *client_later), server)
        }
        _ => (None, None),
    };
    Ok(Ran { output, command: line.show(), client_cores, server_cores })
}

/// The end of a long text.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(12)..).unwrap_or_default().join("\n")
}

/// User and system time of a process with all its threads, those that have ended too.
fn processor_time(pid: u32) -> Option<Duration> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// utime and stime of /proc/PID/stat, in hundredths of a second (USER_HZ, which Linux has fixed).
fn parse_stat(stat: &str) -> Option<Duration> {
    // The name of the program stands in parentheses and may have spaces.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

/// Time that the present threads of a process ran, in nanoseconds: for spans in which none ends.
fn run_time(pid: u32) -> Result<Duration> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        let first = text.split_whitespace().next().context("schedstat is empty")?;
        total += first.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_the_sum_of_user_and_system() {
        let stat = "4242 (a (b) c) S 1 4242 4242 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 3 0 99";
        assert_eq!(parse_stat(stat), Some(Duration::from_secs(2)));
        assert_eq!(parse_stat("nothing"), None);
    }

    #[test]
    fn a_client_that_fails_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let line = Line::new(vec![], "sh", ["-c", "echo bad luck >&2; exit 3"]);
        let error = run_client(&line, folder.path(), 1, None).err().unwrap().to_string();
        assert!(error.contains("bad luck") && error.contains("exit status: 3"), "{error}");
    }

    #[test]
    fn processor_time_is_watched_in_the_midst_of_a_measurement() {
        let folder = tempfile::tempdir().unwrap();
        let line = Line::new(vec![], "sh", ["-c", "sleep 1.3; echo done"]);
        let ran = run_client(&line, folder.path(), 1, Some(std::process::id())).unwrap();
        assert_eq!(ran.output, "done\n");
        assert!(ran.client_cores.unwrap() < 0.2, "{:?}", ran.client_cores);
        assert!(ran.server_cores.is_some());
    }

    #[test]
    fn a_server_is_waited_for_and_ended() {
        let folder = tempfile::tempdir().unwrap();
        let line = Line::new(vec![], "sh", ["-c", "echo ready; exec sleep 60"]);
        let mut server = Server::start(line, folder.path(), "sleeper").unwrap();
        server.wait_ready(|said| said.contains("ready")).unwrap();
        let pid = server.pid();
        server.stop().unwrap();
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        let line = Line::new(vec![], "sh", ["-c", "echo no port; exit 1"]);
        let mut server = Server::start(line, folder.path(), "failure").unwrap();
        let error = server.wait_ready(|_| false).unwrap_err().to_string();
        assert!(error.contains("no port"), "{error}");
    }

    #[test]
    fn lines_can_be_pasted_into_a_shell() {
        let line = Line::new(vec!["taskset".into()], "fio", ["--name=a b", "it's", "plain"]);
        assert_eq!(line.show(), "taskset fio '--name=a b' 'it'\\''s' plain");
    }
}
