//! `lode publisher`: CI jobs that sign in as a robot.

use lode_client::Registry;
use serde_json::{Map, Value, json};

use super::access::{delete, items, segment, text};
use crate::{
    args::{Publisher, PublisherAdd},
    connect::Connection,
    error::{Failure, Outcome},
    pages::fetch_all,
    table::Table,
    times::show_field,
    ui,
};

pub(crate) async fn publisher(connection: &Connection, command: Publisher) -> Outcome {
    let registry = connection.default_registry()?;
    match command {
        Publisher::Add(args) => add(&registry, args).await,
        Publisher::List { robot, wide, json } => {
            let path = format!("lode/v1/publishers?robot={}", segment(&robot));
            let listed = json!({ "publishers": fetch_all(&registry, &path, "publishers").await? });
            if json {
                return ui::json(&listed);
            }
            let rows: Vec<Vec<String>> = items(&listed, "publishers")
                .map(|publisher| {
                    let conditions = publisher["conditions"].as_object().into_iter().flatten();
                    let conditions: Vec<String> = conditions
                        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
                        .collect();
                    vec![
                        text(publisher, "id"),
                        text(publisher, "kind"),
                        text(publisher, "issuer"),
                        conditions.join(" "),
                        show_field(publisher, "used_at", "never"),
                    ]
                })
                .collect();
            Table::new(&["ID", "KIND", "ISSUER", "CONDITIONS", "LAST USED"], &rows)
                .optional(&["LAST USED", "KIND", "ISSUER"])
                .wide(wide)
                .print()
        }
        Publisher::Rm { robot, id } => {
            let path = format!("lode/v1/publishers/{}?robot={}", segment(&id), segment(&robot));
            delete(&registry, &path).await?;
            ui::print_message(format!("removed publisher {id}"));
            Ok(())
        }
    }
}

async fn add(registry: &Registry, args: PublisherAdd) -> Outcome {
    let PublisherAdd {
        robot, github, workflow, gitlab, config_file, issuer, environment, claim, json, ..
    } = args;
    let kind = match (&github, &gitlab) {
        (Some(_), _) => "github",
        (_, Some(_)) => "gitlab",
        _ => "oidc",
    };
    let mut conditions = Map::new();
    for text in claim {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| Failure::new(format!("`{text}` is not a claim")).hint("--claim NAME=VALUE"))?;
        conditions.insert(name.to_owned(), value.into());
    }
    for (name, value) in [
        ("repository", github),
        ("workflow", workflow),
        ("project_path", gitlab),
        ("config_file", config_file),
        ("environment", environment),
    ] {
        if let Some(value) = value {
            conditions.insert(name.to_owned(), value.into());
        }
    }
    let body = json!({ "robot": robot, "kind": kind, "issuer": issuer, "conditions": conditions });
    let created: Value = registry.json_post("lode/v1/publishers", &body).await?;
    match json {
        true => ui::json(&created)?,
        false => ui::print_message(format!(
            "created publisher {}: its jobs sign in as {robot}",
            text(&created, "id")
        )),
    }
    if let Some(warning) = created["warning"].as_str() {
        ui::print_message(format!("warning: {warning}"));
    }
    Ok(())
}
