//! Compares Lode with other registries: the same load on each in turn, in one run, on the same storage.
//! `tests/bench/run` builds this program and runs it. docs/reference/performance.md explains the output.

mod access;
mod http;
mod load;
mod table;
mod target;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use load::{Blobs, Request, Shape, TaggedManifests};
use table::{Sample, median, table};
use target::{Kind, Place, Target};

const USAGE: &str = "usage: measure [--quick] [--rounds N] [--on tmpfs,disk,s3,redirect] [--only push-pull,requests,access] [--shape COUNTxMIBxCLIENTS]...
               --lode [NAME=]PROGRAM... [--distribution PROGRAM] [--zot PROGRAM]
               [--disk FOLDER] [--tmpfs FOLDER] [--s3 ENDPOINT --bucket NAME --access-key KEY --secret-key KEY [--objects FOLDER]] [--json FILE]";

struct Options {
    rounds: u32,
    shapes: Vec<Shape>,
    time: Duration,
    places: Vec<Place>,
    targets: Vec<Target>,
    only: Vec<String>,
    json: Option<PathBuf>,
}

fn main() -> io::Result<()> {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(reason) => {
            eprint(&format!("error: {reason}\n\n{USAGE}"));
            std::process::exit(2);
        }
    };
    let mut samples = Vec::new();
    let mut run = 0;
    for place in &options.places {
        baselines(place, &options)?;
        if options.only.iter().any(|part| part == "requests") {
            requests(place, &options, &mut run, &mut samples)?;
        }
        if options.only.iter().any(|part| part == "push-pull") {
            for shape in &options.shapes {
                push_pull(place, *shape, &options, &mut run, &mut samples)?;
            }
        }
    }
    for place in options.places.iter().filter(|_| options.only.iter().any(|part| part == "access")) {
        print(&access::measure(place, &options, &mut run)?);
    }
    if let Some(path) = &options.json {
        let lines: String = samples.iter().map(|sample| format!("{}\n", sample.to_json())).collect();
        std::fs::write(path, lines)?;
    }
    print(&table(&samples));
    Ok(())
}

/// Runs `each` for every target in turn. Each round starts with another target.
fn for_each_target(options: &Options, mut each: impl FnMut(&Target) -> io::Result<()>) -> io::Result<()> {
    let n = options.targets.len();
    for round in 0..options.rounds as usize {
        for at in 0..n {
            let target = &options.targets[(round + at) % n];
            if let Err(error) = each(target) {
                eprint(&format!("{}: {error}", target.name));
            }
        }
    }
    Ok(())
}

fn push_pull(
    place: &Place,
    shape: Shape,
    options: &Options,
    run: &mut u32,
    samples: &mut Vec<Sample>,
) -> io::Result<()> {
    let blobs = Blobs::new(shape);
    let gib = shape.bytes() as f64 / f64::from(1 << 30);
    for_each_target(options, |target| {
        *run += 1;
        let server = target.start(place, *run)?;
        for (verb, act) in [("push", Blobs::push as fn(&Blobs, _) -> _), ("pull", Blobs::pull)] {
            sync_disks();
            server.reset_peak();
            let before = server.cpu_seconds();
            let seconds = act(&blobs, server.address)?.as_secs_f64();
            samples.push(Sample {
                place: place.name().to_owned(),
                row: format!("{verb} {} by {}", shape.name(), shape.clients),
                target: target.name.clone(),
                rate: gib * 1024.0 / seconds,
                unit: "MiB/s",
                cpu: (server.cpu_seconds() - before) / gib,
                peak_bytes: server.peak_bytes(),
            });
            print_last_sample(samples);
        }
        Ok(())
    })
}

fn requests(place: &Place, options: &Options, run: &mut u32, samples: &mut Vec<Sample>) -> io::Result<()> {
    for_each_target(options, |target| {
        *run += 1;
        let server = target.start(place, *run)?;
        let tagged = TaggedManifests::push(server.address, "")?;
        sync_disks();
        for request in Request::ALL {
            tagged.send_requests(server.address, "", request, options.time / 10)?;
            server.reset_peak();
            let before = server.cpu_seconds();
            let (count, time) = tagged.send_requests(server.address, "", request, options.time)?;
            samples.push(Sample {
                place: place.name().to_owned(),
                row: request.name().to_owned(),
                target: target.name.clone(),
                rate: count as f64 / time.as_secs_f64(),
                unit: "/s",
                cpu: (server.cpu_seconds() - before) * 1e6 / count as f64,
                peak_bytes: server.peak_bytes(),
            });
            print_last_sample(samples);
        }
        Ok(())
    })
}

/// Prints the rates of the machine without a registry.
fn baselines(place: &Place, options: &Options) -> io::Result<()> {
    let mib = |rates: Vec<f64>| median(rates) / f64::from(1 << 20);
    let bytes = options.shapes.first().map_or(1 << 30, Shape::bytes).min(1 << 30);
    let three = |one: &dyn Fn() -> io::Result<f64>| (0..3).map(|_| one()).collect::<io::Result<Vec<f64>>>();
    let hash = mib(three(&|| Ok(load::plain_hash(bytes)))?);
    let socket = mib(three(&|| load::plain_socket(bytes))?);
    let mut line =
        format!("{}: SHA-256 on one core {hash:.0} MiB/s, loopback {socket:.0} MiB/s", place.name());
    if let Place::Folder { root, .. } = place {
        std::fs::create_dir_all(root)?;
        sync_disks();
        let write = mib(three(&|| load::plain_write(root, bytes))?);
        line.push_str(&format!(", plain write and fsync {write:.0} MiB/s"));
    }
    print(&line);
    Ok(())
}

/// Syncs the writes of earlier servers to the disk, so that they do not slow down the next server.
#[allow(unsafe_code)]
fn sync_disks() {
    // SAFETY: sync has no arguments and no result.
    unsafe { libc::sync() };
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let shape = |count, size_mib, clients| Shape { count, size_mib, clients };
    let mut options = Options {
        rounds: 3,
        shapes: vec![shape(1, 4096, 1), shape(16, 256, 16), shape(400, 10, 16)],
        time: Duration::from_secs(5),
        places: Vec::new(),
        targets: Vec::new(),
        only: ["requests", "push-pull", "access"].map(str::to_owned).to_vec(),
        json: None,
    };
    let mut on = vec!["tmpfs".to_owned(), "disk".to_owned()];
    let (mut disk, mut tmpfs) = (PathBuf::from("/var/tmp/lode-bench"), PathBuf::from("/dev/shm/lode-bench"));
    let mut s3 = [const { String::new() }; 4];
    let mut objects = None;
    let mut own_shapes = Vec::new();
    let list = |text: String| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    while let Some(name) = args.next() {
        if name == "--quick" {
            options.shapes = vec![shape(1, 1024, 1), shape(16, 64, 16), shape(100, 10, 16)];
            options.time = Duration::from_secs(2);
            continue;
        }
        let value = args.next().ok_or_else(|| format!("`{name}` is unknown or has no value"))?;
        let mut target = |kind, default: &str| {
            let (name, program) = value.split_once('=').unwrap_or((default, &value));
            options.targets.push(Target { kind, name: name.to_owned(), program: program.into() });
        };
        match name.as_str() {
            "--rounds" => options.rounds = value.parse().map_err(|_| "--rounds takes a number")?,
            "--on" => on = list(value),
            "--only" => options.only = list(value),
            "--shape" => {
                match *value.split('x').map(str::parse).collect::<Result<Vec<u64>, _>>().unwrap_or_default() {
                    [count, mib, clients] => own_shapes.push(shape(count as usize, mib, clients as usize)),
                    _ => return Err("--shape takes COUNTxMIBxCLIENTS".to_owned()),
                }
            }
            "--lode" => target(Kind::Lode, "lode"),
            "--distribution" => target(Kind::Distribution, "distribution"),
            "--zot" => target(Kind::Zot, "zot"),
            "--disk" => disk = value.into(),
            "--tmpfs" => tmpfs = value.into(),
            "--s3" => s3[0] = value,
            "--bucket" => s3[1] = value,
            "--access-key" => s3[2] = value,
            "--secret-key" => s3[3] = value,
            "--objects" => objects = Some(value.into()),
            "--json" => options.json = Some(value.into()),
            _ => return Err(format!("unknown option `{name}`")),
        }
    }
    if !own_shapes.is_empty() {
        options.shapes = own_shapes;
    }
    for name in on {
        options.places.push(match name.as_str() {
            "tmpfs" => Place::Folder { name, root: tmpfs.clone() },
            "disk" => Place::Folder { name, root: disk.clone() },
            "s3" | "redirect" if !s3[0].is_empty() => {
                let [endpoint, bucket, access_key, secret_key] = s3.clone();
                let (scratch, objects, redirect) = (tmpfs.join("s3"), objects.clone(), name == "redirect");
                Place::S3 { endpoint, bucket, access_key, secret_key, scratch, objects, redirect }
            }
            other => return Err(format!("unknown storage `{other}`, or `--s3` is missing")),
        });
    }
    match options.targets.is_empty() {
        true => Err("no program to measure".to_owned()),
        false => Ok(options),
    }
}

fn print_last_sample(samples: &[Sample]) {
    if let Some(Sample { place, row, target, rate, unit, cpu, peak_bytes }) = samples.last() {
        eprint(&format!(
            "{place}  {row}  {target}: {rate:.0} {unit}, CPU {cpu:.2}, {} MiB",
            peak_bytes >> 20
        ));
    }
}

#[allow(clippy::print_stdout)]
fn print(text: &str) {
    println!("{text}");
}

#[allow(clippy::print_stderr)]
fn eprint(text: &str) {
    eprintln!("{text}");
}
