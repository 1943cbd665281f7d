# The commands that CI runs and those for daily development. `just` without arguments lists them.

_default:
    @just --list --unsorted

# Serves the registry, the gateway, a local worker and a small model on http://127.0.0.1:5000
[group('run')]
demo:
    cargo run --release -- serve --demo

# Runs everything that CI runs
[group('check')]
ci:
    .ci/run

# Checks formatting, lints and documentation, without tests
[group('check')]
lint:
    python3 tests/architecture
    cargo fmt --all --check
    cargo clippy --locked --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items

# Checks the licences, versions and sources of dependencies, and looks for unused ones
[group('check')]
deps:
    cargo deny --locked check bans licenses sources
    cargo machete

# Looks for known vulnerabilities in dependencies; needs the network
[group('check')]
advisories:
    cargo deny --locked check advisories

# Formats the code with rustfmt
[group('check')]
fmt:
    cargo fmt --all

# Runs all tests, or the named parts (`tests/run --help`)
[group('test')]
test *parts:
    tests/run {{ parts }}

# Runs the tests for longer: 200 kills, a blob of 4 GiB
[group('test')]
test-long *parts:
    tests/run --long {{ parts }}

# Runs the end-to-end tests whose names contain NAME, against the debug build
[group('test')]
e2e name:
    cargo build --workspace --bins
    cargo test --workspace --test e2e -- {{ name }}
