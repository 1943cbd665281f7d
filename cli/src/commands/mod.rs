//! The commands, one file each. [`run`](fn@run) dispatches to them.

mod access;
mod audit;
mod backup;
mod browser;
mod cat;
mod completions;
mod contents;
mod convert;
pub(crate) mod cp;
mod create;
mod demo;
mod diff;
mod doctor;
mod embed;
mod exchange;
mod fsck;
mod gc;
mod hub;
mod inspect;
mod list;
mod listen;
mod login;
mod migrate;
mod perplexity;
mod ps;
mod publisher;
mod pull;
mod push;
mod rerank;
mod rm;
mod run;
pub(crate) mod runner;
mod search;
mod serve;
mod show;
mod status;
mod stop;
mod tag_history;
mod tensor;
mod tokenize;
mod whoami;
mod worker;
mod worker_admin;

use std::process::ExitCode;

use crate::{
    args::{Cli, Command, Manifest, Repo, Tag, Tensor, Worker},
    connect::Connection,
    error::Outcome,
    suggest,
};

pub(crate) async fn run(cli: Cli) -> Outcome<ExitCode> {
    let global = cli.global.clone();
    match dispatch(cli).await {
        Err(failure) => Err(suggest::complete(failure, &global).await),
        done => done,
    }
}

async fn dispatch(cli: Cli) -> Outcome<ExitCode> {
    let connect = || Connection::new(&cli.global);
    match cli.command {
        Command::Serve(args) => serve::run(args).await?,
        Command::Worker(Worker { command: Some(command), .. }) => {
            worker_admin::run(&connect()?, command).await?
        }
        Command::Worker(args) => worker::run(&cli.global, args).await?,
        Command::Runner(args) => runner::run(args)?,
        Command::Create(args) => create::run(&connect()?, args).await?,
        Command::Convert(args) => convert::run(&connect()?, args).await?,
        Command::Pull(args) => pull::run(&connect()?, args).await?,
        Command::Cat(args) => cat::run(&connect()?, args).await?,
        Command::Push(args) => push::run(&connect()?, args).await?,
        Command::Cp(args) => cp::run(&connect()?, args).await?,
        Command::Rm(args) => rm::run(&connect()?, args).await?,
        Command::List(args) => list::run(&connect()?, args).await?,
        Command::Search(args) => search::run(&connect()?, args).await?,
        Command::Repo(Repo::List(args)) => contents::repositories(&connect()?, args).await?,
        Command::Repo(Repo::Move(args)) => contents::move_repository(&connect()?, args).await?,
        Command::Tag(Tag::List(args)) => contents::tags(&connect()?, args).await?,
        Command::Tag(Tag::History(args)) => tag_history::history(&connect()?, args).await?,
        Command::Tag(Tag::Undo(args)) => tag_history::undo(&connect()?, args).await?,
        Command::Manifest(Manifest::List(args)) => contents::manifests(&connect()?, args).await?,
        Command::Manifest(Manifest::Inspect(args)) => inspect::run(&connect()?, args).await?,
        Command::Show(args) => show::run(&connect()?, args).await?,
        Command::Diff(args) => diff::run(&connect()?, args).await?,
        Command::Run(args) => run::run(&connect()?, args).await?,
        Command::Embed(args) => embed::run(&connect()?, args).await?,
        Command::Rerank(args) => rerank::run(&connect()?, args).await?,
        Command::Ps(args) => ps::run(&connect()?, args).await?,
        Command::Stop(args) => stop::run(&connect()?, args).await?,
        Command::Tensor(Tensor::Ls(args)) => tensor::list(&connect()?, args).await?,
        Command::Tensor(Tensor::Export(args)) => tensor::export(&connect()?, args).await?,
        Command::Tokenize(args) => tokenize::run(&connect()?, args).await?,
        Command::Perplexity(args) => perplexity::run(&connect()?, args).await?,
        Command::Login(args) => login::login(&connect()?, args).await?,
        Command::Logout(args) => login::logout(&connect()?, args).await?,
        Command::Whoami(args) => whoami::run(&connect()?, args).await?,
        Command::User(command) => access::user(&connect()?, command).await?,
        Command::Robot(command) => access::robot(&connect()?, command).await?,
        Command::Group(command) => access::group(&connect()?, command).await?,
        Command::Token(command) => access::token(&connect()?, command).await?,
        Command::Publisher(command) => publisher::publisher(&connect()?, command).await?,
        Command::Grant(command) => access::grant(&connect()?, command).await?,
        Command::Visibility(args) => access::visibility(&connect()?, args).await?,
        Command::Key(command) => access::key(&connect()?, command).await?,
        Command::Protect(args) => access::protect(&connect()?, args).await?,
        Command::Quota(command) => access::quota(&connect()?, command).await?,
        Command::Status(args) => status::run(&connect()?, args).await?,
        Command::Audit(args) => audit::run(&connect()?, args).await?,
        Command::Gc(args) => gc::run(&connect()?, args).await?,
        Command::Fsck(args) => return fsck::run(&connect()?, args).await,
        Command::Backup(args) => backup::run(args).await?,
        Command::Migrate(args) => migrate::run(args).await?,
        Command::Doctor(args) => return doctor::run(args).await,
        Command::Completions(args) => completions::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}
