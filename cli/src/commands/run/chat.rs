//! A chat: reads messages and commands from the terminal, until the user leaves.

use std::ops::ControlFlow;

use lode_model::modelfile::{Edits, Role};
use serde_json::{Value, json};

use super::{
    commands::{self, Command, Line, Setting},
    editor::{Editor, Input},
    model::Model,
    names::{self, Part},
    settings::{Format, Settings},
    stream::{self, Output},
};
use crate::{
    args::Think,
    connect::{Connection, Target},
    derived,
    error::{Failure, Outcome, PIPE_CLOSED},
    job::INTERRUPTED,
    suggest, ui,
};

const CHAT: &str = "lode/v1/chat";

pub(super) struct Chat<'a> {
    connection: &'a Connection,
    target: Target,
    /// Whether the model reasons; `true` if the server does not report what the model does.
    can_reason: bool,
    settings: Settings,
    /// The conversation, without the messages that are part of the model.
    messages: Vec<(Role, String)>,
    editor: Editor,
}

impl<'a> Chat<'a> {
    /// Loads the model, so that errors are reported now and the first response starts soon.
    pub(super) async fn start(
        connection: &'a Connection,
        target: Target,
        settings: Settings,
    ) -> Outcome<Chat<'a>> {
        let model = load(&target, &settings).await?;
        let editor = Editor::open()?;
        ui::print_message(format!(
            "chatting with {target}; /? lists the commands, /bye or Ctrl-D ends the chat"
        ));
        model.print_conversation()?;
        let can_reason = model.can_reason();
        Ok(Chat { connection, target, can_reason, settings, messages: Vec::new(), editor })
    }

    pub(super) async fn run(mut self) -> Outcome {
        loop {
            let text = match tokio::task::block_in_place(|| self.editor.read())? {
                Input::Text(text) => text,
                Input::Interrupted => {
                    ui::print_message("/bye or Ctrl-D ends the chat");
                    continue;
                }
                Input::End => return Ok(()),
            };
            match self.handle(&text).await {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return Ok(()),
                Err(failure) if failure.exit_code() == PIPE_CLOSED => return Err(failure),
                Err(failure) => {
                    let failure = suggest::add_similar_names(failure).await;
                    ui::print_message(failure.to_string());
                }
            }
        }
    }

    async fn handle(&mut self, text: &str) -> Outcome<ControlFlow<()>> {
        match commands::parse(text)? {
            Line::Empty => {}
            Line::Message(text) => self.respond(text).await?,
            Line::Command(Command::Bye) => return Ok(ControlFlow::Break(())),
            Line::Command(Command::Help) => ui::print_line(names::help())?,
            Line::Command(Command::Set(setting)) => self.set(setting)?,
            Line::Command(Command::Show(part)) => stream::until_interrupted(self.show(part)).await?,
            Line::Command(Command::Load(name)) => self.load(name).await?,
            Line::Command(Command::Save(name)) => self.save(name).await?,
            Line::Command(Command::Clear) => {
                self.messages.clear();
                ui::print_message("the conversation is forgotten");
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// One turn. A turn that fails, or is stopped before its first word, is not part of the conversation. A
    /// response that is stopped later is part of it as far as it came: many templates refuse two messages of the
    /// user in a row.
    async fn respond(&mut self, text: &str) -> Outcome {
        self.messages.push((Role::User, text.to_owned()));
        let mut request = self.settings.request(&self.target);
        request.insert("messages".into(), self.request_messages());
        let mut output = Output::start(&format!("waiting for {}", self.target), self.settings.hide_thinking);
        let generation = stream::generate(&self.target, CHAT, &request, &mut output);
        let outcome = stream::until_interrupted(generation).await;
        let response = output.end();
        ui::print_to_terminal("\n");
        let is_stopped = matches!(&outcome, Err(failure) if failure.exit_code() == INTERRUPTED);
        match response {
            Ok(response) if !response.is_empty() && (outcome.is_ok() || is_stopped) => {
                self.messages.push((Role::Assistant, response));
            }
            _ => drop(self.messages.pop()),
        }
        match outcome {
            Ok(record) => record.print_summary(self.settings.verbose),
            Err(_) if is_stopped => {}
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    fn request_messages(&self) -> Value {
        let system = self.settings.system.as_deref().map(|system| (Role::System, system));
        let messages = self.messages.iter().map(|(role, text)| (*role, text.as_str()));
        let message = |(role, text): (Role, &str)| json!({ "role": role.as_str(), "content": text });
        system.into_iter().chain(messages).map(message).collect()
    }

    fn set(&mut self, setting: Setting<'_>) -> Outcome {
        let on_off = |is_on: bool| if is_on { "on" } else { "off" };
        ui::print_message(match setting {
            Setting::System(text) => {
                self.settings.system = Some(text.to_owned());
                "the system message is set".to_owned()
            }
            Setting::Parameter(name, Some(value)) => {
                let message = format!("{name} is {value}");
                self.settings.options.insert(name.to_owned(), value);
                message
            }
            Setting::ResetParameter(name) => {
                self.settings.options.remove(name);
                format!("{name} is the model's own")
            }
            Setting::Parameter(name, None) => format!("notice: {name} is obsolete and is ignored"),
            Setting::Format(name) => {
                self.settings.format = name.map(Format::read).transpose()?;
                format!("the format is {}", name.unwrap_or("none"))
            }
            Setting::Think(Some(think)) if think != Think::False && !self.can_reason => {
                return Err(Failure::new(format!("{} does not support reasoning", self.target)));
            }
            Setting::Think(think) => {
                self.settings.think = think;
                format!("think is {}", think.map_or("the model's default", Think::name))
            }
            Setting::Verbose(is_on) => {
                self.settings.verbose = is_on;
                format!("verbose is {}", on_off(is_on))
            }
            Setting::History(is_on) => {
                self.editor.keeps_history = is_on;
                format!("history is {}", on_off(is_on))
            }
        });
        Ok(())
    }

    async fn show(&self, part: Part) -> Outcome {
        if part == Part::Settings {
            return self.settings.print();
        }
        let model = Model::fetch(&self.target).await?;
        match part {
            Part::All => {
                model.print_info(&self.target)?;
                self.settings.print()
            }
            Part::Settings => self.settings.print(),
            Part::Info => model.print_info(&self.target),
            Part::System => {
                print_part("system message", self.settings.system.as_ref().unwrap_or(&model.system))
            }
            Part::Parameters => {
                print_part("parameters", &model.parameters)?;
                self.settings.print_options()
            }
            Part::Template => print_part("template", &model.template),
            Part::License => print_part("licence", &model.license),
            Part::Modelfile => print_part("Modelfile", &model.modelfile),
        }
    }

    async fn load(&mut self, name: &str) -> Outcome {
        let target = self.connection.target(name)?;
        let model = load(&target, &self.settings).await?;
        self.target = target;
        self.can_reason = model.can_reason();
        self.settings.system = None;
        self.messages.clear();
        ui::print_message(format!("chatting with {}", self.target));
        model.print_conversation()
    }

    /// Creates a model like a Modelfile with the settings and messages of this chat.
    async fn save(&mut self, name: &str) -> Outcome {
        let (target, _) = self.connection.target_tag(name)?;
        let mut messages = Vec::new();
        if !self.messages.is_empty() {
            messages = stream::until_interrupted(Model::fetch(&self.target)).await?.messages()?;
            messages.extend(self.messages.iter().cloned());
        }
        let edits = Edits {
            system: self.settings.system.clone(),
            parameters: self.settings.options.clone(),
            messages,
            ..Edits::default()
        };
        let created = stream::until_interrupted(derived::model(&target, &self.target, &edits)).await?;
        ui::print_message(format!("saved as {target} {}", created.digest));
        if target.model() == self.target.model() && target.registry.url() == self.target.registry.url() {
            // The conversation is now part of the model.
            self.messages.clear();
        }
        Ok(())
    }
}

/// Loads a model into memory with the options of the next request.
async fn load(target: &Target, settings: &Settings) -> Outcome<Model> {
    stream::until_interrupted(async {
        let model = Model::fetch(target).await?;
        let mut request = settings.request(target);
        request.insert("messages".into(), json!([]));
        let mut output = Output::start(&format!("loading {target}"), settings.hide_thinking);
        stream::generate(target, CHAT, &request, &mut output).await?;
        Ok(model)
    })
    .await
}

fn print_part(name: &str, text: &str) -> Outcome {
    match text.trim_end() {
        "" => {
            ui::print_message(format!("the model has no {name}"));
            Ok(())
        }
        text => ui::print_line(text),
    }
}
