//! A server of real processes.

use std::fs::{self, File};
use std::io::PipeReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::ports;
use crate::processes::{self, Process, Role};
use crate::wait::{LIMIT, blocking, until};

/// Time within which processes end after their launcher was killed.
const ORPHANS: Duration = Duration::from_secs(5);

/// A strategy that needs no measurements.
const UNTIMED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/untimed.json");

/// Options for starting a server.
#[derive(Debug, Clone)]
pub struct Options {
    program: PathBuf,
    limits: Vec<String>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    unset: Vec<&'static str>,
    unread: bool,
    timed: bool,
}

impl Options {
    /// Options for the demo model on two ranks of one thread each, with all public
    /// ports and a small cache. The depth of drafts adapts by `ema`, see [`Self::timed`].
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            limits: Vec::new(),
            arguments: Vec::new(),
            environment: Vec::new(),
            unset: Vec::new(),
            unread: false,
            timed: false,
        }
        .set("--tp-size", "2")
        .set("--threads-per-rank", "1")
        .set("--max-total-tokens", "32768")
    }

    /// Sets an option; a later value replaces an earlier one.
    #[must_use]
    pub fn set(self, option: &str, value: &str) -> Self {
        let mut own = self.without(option);
        own.arguments.extend([option.to_owned(), value.to_owned()]);
        own
    }

    /// Removes an option and its value.
    #[must_use]
    pub fn without(mut self, option: &str) -> Self {
        if let Some(at) = self.arguments.iter().position(|word| word == option) {
            self.arguments.drain(at..at + 2);
        }
        self
    }

    /// Adds an option that takes no value.
    #[must_use]
    pub fn flag(mut self, option: &str) -> Self {
        self.arguments.push(option.to_owned());
        self
    }

    /// Starts all processes under a limit of the system, in the form of the shell's
    /// `ulimit`: `-n` for file descriptors, `-v` for KiB of address space.
    #[must_use]
    pub fn limit(mut self, option: &str, value: u64) -> Self {
        self.limits.push(format!("ulimit {option} {value} && "));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn without_env(mut self, name: &'static str) -> Self {
        self.unset.push(name);
        self
    }

    /// Lets the depth of drafts adapt by the strategy that users get, which times steps before
    /// serving. That takes most of the time and work of a start, so others leave it out.
    #[must_use]
    pub fn timed(mut self) -> Self {
        self.timed = true;
        self
    }

    /// True if a strategy may be given: the demo model drafts, and the test does not say how.
    fn takes_a_strategy(&self) -> bool {
        let own = |word: &String| {
            word.starts_with("--speculative") || word == "--model-path" || word == "--config"
        };
        !self.timed && !self.arguments.iter().any(own)
    }

    /// Connects stdout and stderr to pipes that nobody reads before
    /// [`Server::read_output`].
    #[must_use]
    pub fn unread(mut self) -> Self {
        self.unread = true;
        self
    }
}

/// A started program. Dropping this value kills the program. The drop also checks that
/// no process is left, and that no process reported a bug of its own.
#[derive(Debug)]
pub struct Server {
    /// Port of the OpenAI API.
    pub port: u16,
    /// Port of `lockstep.v1.Inference`.
    pub grpc_port: u16,
    /// Port of SGLang's scheduler service.
    pub sglang_port: u16,
    /// HTTP client without idle connections.
    pub client: reqwest::Client,
    launcher: Mutex<Child>,
    unread: Mutex<Vec<(PipeReader, File)>>,
    folder: TempDir,
}

impl Server {
    /// Returns the server shared by tests that change nothing.
    pub async fn shared(options: &Options) -> Arc<Self> {
        static SHARED: tokio::sync::Mutex<Weak<Server>> =
            tokio::sync::Mutex::const_new(Weak::new());
        let mut shared = SHARED.lock().await;
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(Self::start(options.clone()).await);
        *shared = Arc::downgrade(&server);
        server
    }

    /// Starts a server and waits until it serves.
    ///
    /// # Panics
    /// With the log, if it does not serve.
    pub async fn start(options: Options) -> Self {
        let server = Self::launch(options);
        server.ready().await;
        server
    }

    /// Starts a server.
    ///
    /// # Panics
    /// Panics if the system cannot start the program.
    pub fn launch(options: Options) -> Self {
        let ports = [ports::free(), ports::free(), ports::free()];
        Self::launch_on(options, ports)
    }

    /// Starts a server on these ports.
    ///
    /// # Panics
    /// Panics if the system cannot start the program.
    pub fn launch_on(options: Options, [port, grpc_port, sglang_port]: [u16; 3]) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("ls-test-")
            .tempdir()
            .expect("a temporary folder");
        let mut options = options
            .set("--port", &port.to_string())
            .set("--grpc-port", &grpc_port.to_string())
            .set("--sglang-grpc-port", &sglang_port.to_string());
        if options.takes_a_strategy() {
            options = options.set("--speculative-adaptive-config", UNTIMED);
        }
        let mut unread = Vec::new();
        let mut output = |name| {
            let log = File::create(folder.path().join(name)).expect("a log file");
            if !options.unread {
                return Stdio::from(log);
            }
            let (reader, writer) = std::io::pipe().expect("a pipe");
            unread.push((reader, log));
            Stdio::from(writer)
        };
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(format!("{}exec \"$0\" \"$@\"", options.limits.concat()))
            .arg(&options.program)
            .arg("serve")
            .args(&options.arguments)
            .arg("--run-dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LOCKSTEP_") {
                command.env_remove(name);
            }
        }
        // Cargo puts fakes of CUDA's libraries where programs look for them.
        command.env("LOCKSTEP_DEVICE", "cpu");
        for name in &options.unset {
            command.env_remove(name);
        }
        command.envs(options.environment);
        let launcher = command.spawn().expect("the program under test");
        Self {
            port,
            grpc_port,
            sglang_port,
            client: client(),
            launcher: Mutex::new(launcher),
            unread: Mutex::new(unread),
            folder,
        }
    }

    /// Waits until the server serves, and its launcher knows.
    ///
    /// # Panics
    /// With the log, if it ends instead.
    pub async fn ready(&self) {
        until("a healthy server", LIMIT, async || {
            assert_eq!(self.ended(), None, "ended instead:\n{}", self.log());
            if !self.log().contains("Ready after") && self.reads_output() {
                return None;
            }
            let health = self.try_get("/health").await.ok()?;
            (health.status == 200).then_some(())
        })
        .await;
    }

    /// Returns the address of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Folder of this server alone, for its logs and its run directory.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the run directory.
    ///
    /// # Panics
    /// Panics if there is none.
    pub fn run_dir(&self) -> PathBuf {
        fs::read_dir(self.folder())
            .expect("the folder")
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.is_dir())
            .expect("a run directory")
    }

    /// Returns everything written so far, first to stdout and then to stderr.
    pub fn log(&self) -> String {
        ["stdout", "stderr"]
            .map(|name| fs::read(self.folder().join(name)).unwrap_or_default())
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .concat()
    }

    /// Starts to read the output that was [`Options::unread`] so far, into the log.
    pub fn read_output(&self) {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        for (mut pipe, mut log) in unread.drain(..) {
            std::thread::spawn(move || std::io::copy(&mut pipe, &mut log));
        }
    }

    fn reads_output(&self) -> bool {
        let unread = self.unread.lock();
        unread.unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Waits until the server has written `text`.
    ///
    /// # Panics
    /// Panics if it does not.
    pub async fn says(&self, text: &str) {
        until(text, LIMIT, async || {
            self.log().contains(text).then_some(())
        })
        .await;
    }

    /// Returns the server's living processes, the launcher included.
    pub fn processes(&self) -> Vec<Process> {
        processes::of(self.folder())
    }

    /// Returns the process of a role, once it exists.
    pub async fn process(&self, role: Role) -> Process {
        until("a process", LIMIT, async || {
            let mut all = self.processes().into_iter();
            all.find(|process| process.role == role)
        })
        .await
    }

    /// Sends a signal to the launcher.
    pub async fn signal(&self, signal: Signal) {
        self.process(Role::Launcher).await.signal(signal);
    }

    /// Waits until the launcher and then all others have ended. Returns the launcher's
    /// exit code, -1 for a signal.
    pub async fn exit(&self, limit: Duration) -> i32 {
        let code = until("the launcher's end", limit, async || self.ended()).await;
        until("no process left", ORPHANS, async || {
            self.processes().is_empty().then_some(())
        })
        .await;
        code
    }

    /// Returns the launcher's exit code, once it has ended; -1 for a signal.
    pub fn ended(&self) -> Option<i32> {
        let mut launcher = self.launcher.lock().unwrap_or_else(PoisonError::into_inner);
        let status = launcher.try_wait().expect("a child of this process")?;
        Some(status.code().unwrap_or(-1))
    }
}

/// Returns a client without proxies or idle connections.
fn client() -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .pool_max_idle_per_host(0)
        .timeout(LIMIT)
        .build()
        .expect("a client")
}

impl Drop for Server {
    fn drop(&mut self) {
        let launcher = self
            .launcher
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let _ = launcher.kill();
        let _ = launcher.wait();
        let folder = self.folder.path().to_owned();
        let gone = blocking(ORPHANS, || processes::of(&folder).is_empty());
        let left = processes::of(&folder);
        for process in &left {
            process.kill();
        }
        if std::thread::panicking() {
            return;
        }
        assert!(gone, "processes outlived their launcher: {left:?}");
        for bug in [
            "a bug in this program",
            "panicked at",
            "integrity check failed",
        ] {
            let log = self.log();
            assert!(!log.contains(bug), "{bug}:\n{log}");
        }
    }
}
