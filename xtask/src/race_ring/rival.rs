//! llama.cpp's RPC in a race: its sources as PyPI has them, two servers of one thread each, and its
//! own benchmark in front.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::hop::{Hop, Wire, free_address};
use crate::step::Steps;

/// What is raced.
const PACKAGE: &str = "llama-cpp-python==0.3.36";
/// Its folder in the archive.
const SOURCES: &str = "vendor/llama.cpp";
/// How long a server may take to listen.
const START: Duration = Duration::from_millis(500);

/// Its two programs.
#[derive(Debug)]
pub struct Rival {
    server: PathBuf,
    bench: PathBuf,
}

/// What one run of its benchmark gave, a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Streams at once.
    pub streams: u32,
    /// Prompt tokens.
    pub prompt: f64,
    /// Decoded tokens, of all streams.
    pub decode: f64,
}

impl Rival {
    /// What `folder` holds already; else it is built there.
    ///
    /// # Errors
    /// Sources that can't be had or built.
    pub fn build(steps: &mut Steps, folder: &Path) -> Result<Self> {
        let folder = folder.join("rpc");
        let programs = folder.join("build/bin");
        let rival = Self {
            server: programs.join("ggml-rpc-server"),
            bench: programs.join("llama-batched-bench"),
        };
        if rival.server.is_file() && rival.bench.is_file() {
            return Ok(rival);
        }
        let venv = folder.join("venv");
        steps.run("venv", Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        let python = venv.join("bin/python");
        let pip = || {
            let mut command = Command::new(&python);
            command.args(["-m", "pip", "--quiet"]);
            command
        };
        steps.run("cmake", pip().args(["install", "cmake", "ninja"]))?;
        let mut fetch = pip();
        fetch.args(["download", "--no-deps", "--no-binary", "llama-cpp-python", PACKAGE, "-d"]);
        steps.run("sources", fetch.arg(&folder))?;
        let archive =
            folder.join(format!("{}.tar.gz", PACKAGE.replace('-', "_").replace("==", "-")));
        let sources = folder.join("src");
        std::fs::create_dir_all(&sources)?;
        let mut unpack = Command::new("tar");
        unpack.arg("xzf").arg(archive).args(["--strip-components", "1", "-C"]).arg(&sources);
        steps.run("unpack", &mut unpack)?;
        let mut configure = Command::new(venv.join("bin/cmake"));
        configure.args(["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_RPC=ON"]);
        configure.args(["-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF"]);
        configure.args(["-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-S"]);
        configure.arg(sources.join(SOURCES)).arg("-B").arg(folder.join("build"));
        configure.arg(format!("-DCMAKE_MAKE_PROGRAM={}", venv.join("bin/ninja").display()));
        steps.run("configure", &mut configure)?;
        let mut build = Command::new(venv.join("bin/cmake"));
        build.arg("--build").arg(folder.join("build")).args(["-j", "2"]);
        build.args(["--target", "ggml-rpc-server", "--target", "llama-batched-bench"]);
        steps.run("llama.cpp", &mut build)?;
        Ok(rival)
    }

    /// Prompt and decode speed of each number of streams, the model spread over two servers.
    ///
    /// # Errors
    /// A program that does not run, or says something else.
    pub fn race(
        &self,
        model: &Path,
        prompt: u32,
        decode: u32,
        streams: &str,
    ) -> Result<Vec<Rates>> {
        let servers = self.servers()?;
        let addresses: Vec<SocketAddr> = servers.iter().map(|server| server.address).collect();
        self.bench(model, &addresses, (prompt, decode), streams)
    }

    /// Bytes that one decoded token of one stream carries over both servers' connections.
    ///
    /// # Errors
    /// As [`Rival::race`]'s.
    pub fn bytes_a_token(&self, model: &Path) -> Result<f64> {
        const FEW: u32 = 16;
        const MANY: u32 = 48;
        let carried = |decode| {
            let servers = self.servers()?;
            let hops: Vec<Hop> = servers
                .iter()
                .map(|s| Hop::to(s.address, Wire::default()))
                .collect::<Result<_>>()?;
            let addresses: Vec<SocketAddr> = hops.iter().map(|hop| hop.address).collect();
            self.bench(model, &addresses, (16, decode), "1")?;
            anyhow::Ok(hops.iter().map(Hop::carried).sum::<u64>())
        };
        let (few, many): (u64, u64) = (carried(FEW)?, carried(MANY)?);
        Ok(many.saturating_sub(few) as f64 / f64::from(MANY - FEW))
    }

    fn servers(&self) -> Result<Vec<Server>> {
        let servers = [(), ()].map(|()| Server::start(&self.server));
        let servers: Vec<Server> = servers.into_iter().collect::<Result<_>>()?;
        std::thread::sleep(START);
        Ok(servers)
    }

    fn bench(
        &self,
        model: &Path,
        servers: &[SocketAddr],
        (prompt, decode): (u32, u32),
        streams: &str,
    ) -> Result<Vec<Rates>> {
        let most = streams.split(',').filter_map(|n| n.parse::<u32>().ok()).max().unwrap_or(1);
        let servers: Vec<String> = servers.iter().map(SocketAddr::to_string).collect();
        let mut command = Command::new(&self.bench);
        command.arg("-m").arg(model).args(["--rpc", &servers.join(","), "-ngl", "99"]);
        command.args(["-t", "1", "-c", &(most * (prompt + decode + 16)).to_string()]);
        command.args(["-npp", &prompt.to_string(), "-ntg", &decode.to_string()]);
        command.args(["-npl", streams, "--output-format", "jsonl"]);
        let output = command.stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("can't run {command:?}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let rates: Vec<Rates> = said.lines().filter_map(rates).collect();
        let wrong = String::from_utf8_lossy(&output.stderr);
        let last = || wrong.lines().rev().take(3).collect::<Vec<_>>().join("; ");
        ensure!(!rates.is_empty(), "{command:?} ended with {}: {}", output.status, last());
        Ok(rates)
    }
}

/// A server of one thread, which ends with it.
struct Server {
    address: SocketAddr,
    child: Child,
}

impl Server {
    fn start(program: &Path) -> Result<Self> {
        let address = free_address()?;
        let mut command = Command::new(program);
        command.args(["-t", "1", "-H", "127.0.0.1", "-p", &address.port().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("can't run {command:?}"))?;
        Ok(Self { address, child })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing to lose.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A line of the benchmark's.
fn rates(line: &str) -> Option<Rates> {
    let field = |name: &str| -> Option<f64> {
        let rest = line.split_once(&format!("\"{name}\":"))?.1;
        rest.split([',', '}']).next()?.trim().parse().ok()
    };
    let streams = field("pl")? as u32;
    Some(Rates { streams, prompt: field("speed_pp")?, decode: field("speed_tg")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_its_benchmark_gives_three_numbers() {
        let line = "{\"n_kv_max\": 640, \"pp\": 512, \"tg\": 64, \"pl\": 4, \"t_pp\": 2.0, \
                    \"speed_pp\": 1024.500000, \"t_tg\": 4.0, \"speed_tg\": 64.25, \"t\": 6.0}";
        assert_eq!(rates(line), Some(Rates { streams: 4, prompt: 1024.5, decode: 64.25 }));
        assert_eq!(rates("main: n_kv_max = 640"), None);
    }
}
