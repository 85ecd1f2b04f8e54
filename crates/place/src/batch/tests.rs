//! Scripts, their quoting and the errors of jobs that cannot be submitted.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::*;
use crate::site_profile::Profiles;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn job(command: &str) -> BatchJob {
    BatchJob {
        name: "train".to_owned(),
        nodes: 2,
        time: Some("1h".parse().unwrap()),
        account: Some("project_1".to_owned()),
        queue: None,
        gpus_per_node: None,
        array: None,
        after: Vec::new(),
        modules: Vec::new(),
        container: None,
        container_runtime: None,
        signal_before: 120,
        requeue: false,
        directives: Vec::new(),
        without: Vec::new(),
        job_dir: "jobs/train".to_owned(),
        regatta: "regatta".to_owned(),
        launch_options: Vec::new(),
        command: words(command),
    }
}

fn site(name: &str) -> Profile {
    Profiles::builtin().unwrap().named(name).unwrap().clone()
}

/// The script for a site with its own scheduler.
fn script_for(name: &str, job: &BatchJob) -> Result<String, BatchError> {
    let site = site(name);
    script(site.batch.scheduler.unwrap_or(BatchScheduler::Slurm), job, &site)
}

#[track_caller]
fn assert_error(name: &str, job: &BatchJob, message: &str) {
    assert_eq!(script_for(name, job).unwrap_err().to_string(), message);
}

#[test]
fn options_that_a_site_requires_are_named() {
    let incomplete = BatchJob { account: None, time: None, ..job("./train") };
    let account = "--account NAME (the project that is charged)";
    let time = "--time LIMIT (as in 2h or 01:30:00)";
    let queue = "--partition NAME (the partition, queue or QOS)";
    for (name, message) in [
        ("lumi-g", format!("LUMI-G requires {account}")),
        ("frontier", format!("Frontier requires {account}, and {time}")),
        ("perlmutter", format!("Perlmutter requires {account}, and {time}")),
        ("polaris", format!("Polaris requires {account}, and {time}, and {queue}")),
    ] {
        assert_error(name, &incomplete, &message);
    }
    // Another scheduler than the site's: a test system.
    script(BatchScheduler::Slurm, &incomplete, &site("polaris")).unwrap();
    script_for("infiniband", &incomplete).unwrap();
}

#[test]
fn values_that_would_break_a_directive_are_refused() {
    let job = || job("./train");
    let name = |text: &str| BatchJob { name: text.to_owned(), ..job() };
    for text in ["", "a b", "a\n#SBATCH --uid=0", "a;b", "-a", "a'b", "%j", "a#b"] {
        assert!(script_for("lumi-g", &name(text)).is_err(), "{text:?}");
        let account = BatchJob { account: Some(text.replace("-a", " -a")), ..job() };
        assert!(script_for("lumi-g", &account).is_err(), "{text:?}");
        let folder = BatchJob { job_dir: text.to_owned(), ..job() };
        assert!(script_for("lumi-g", &folder).is_err(), "{text:?}");
    }
    for text in ["", "qos=debug", "--a\n--b", "--a\u{85}"] {
        let directives = vec![text.to_owned()];
        assert!(script_for("lumi-g", &BatchJob { directives, ..job() }).is_err(), "{text:?}");
    }
    assert_error(
        "lumi-g",
        &name("a b"),
        "--name \"a b\": expected a letter or digit, then letters, digits and any of _ . - +",
    );
}

#[test]
fn lines_in_a_profile_cannot_become_commands() {
    let directive = |option: &str, why: &str| BatchDirective {
        option: option.to_owned(),
        why: why.to_owned(),
        when: Default::default(),
    };
    let site = |change: &dyn Fn(&mut Profile)| {
        let mut site = site("lumi-g");
        change(&mut site);
        script(BatchScheduler::Slurm, &job("./train"), &site)
    };
    assert!(site(&|site| site.batch.directives = vec![directive("--a=b c", "Why.")]).is_ok());
    for (option, why) in [("--a\nreboot", "Why."), ("--a", "Why.\nreboot"), ("reboot", "Why.")] {
        assert!(site(&|site| site.batch.directives = vec![directive(option, why)]).is_err());
    }
    assert!(site(&|site| site.batch.queue = Some("a\nreboot".to_owned())).is_err());
    assert!(site(&|site| site.batch.chunk = Some("a b".to_owned())).is_err());
    assert!(site(&|site| site.title = "a\nreboot".to_owned()).is_err());
    for options in ["--a\nreboot", "reboot"] {
        let options = Some(vec![options.to_owned()]);
        assert!(site(&|site| site.batch.container_options.clone_from(&options)).is_err());
    }
}

#[test]
fn impossible_jobs_are_refused() {
    let short = BatchJob { time: Some("2m".parse().unwrap()), ..job("./train") };
    assert_error(
        "lumi-g",
        &short,
        "--signal-before 120 is not less than the time limit of 120 s; reduce it, or 0 disables \
         the signal",
    );
    let requeue = BatchJob { requeue: true, ..job("./train") };
    assert_error(
        "el-capitan",
        &requeue,
        "Flux does not put jobs back into the queue; remove --requeue and submit a second job \
         with --after-any JOBID",
    );
    let container = BatchJob { container: Some("a.sif".to_owned()), ..job("regatta train") };
    assert_error(
        "lumi-g",
        &container,
        "--container runs a program of yours: `regatta train` runs on the nodes themselves; \
         remove --container",
    );
    let image = BatchJob { container: Some("a.sif".to_owned()), ..job("./train") };
    let edf = BatchJob { container_runtime: Some(ContainerRuntime::Edf), ..image.clone() };
    let error = script(BatchScheduler::Flux, &edf, &site("el-capitan")).unwrap_err().to_string();
    assert!(error.contains("which is an option of srun; choose another"), "{error}");
    let quoted = BatchJob { container: Some("a b".to_owned()), ..edf };
    assert!(matches!(script_for("alps", &quoted), Err(BatchError::BadValue { .. })));
    assert!(script_for("lumi-g", &image).unwrap().contains(" singularity exec --bind"));
    assert!(script_for("el-capitan", &image).unwrap().contains(" singularity exec --rocm --bind"));
    let polaris = BatchJob { queue: Some("debug".to_owned()), ..image };
    let text = script_for("polaris", &polaris).unwrap();
    assert!(text.contains(" apptainer exec --nv --fakeroot --bind"), "{text}");
    let hidden =
        BatchJob { command: vec!["x".into(), "a\n# flux: --urgency=31".into()], ..job("x") };
    assert!(matches!(script_for("el-capitan", &hidden), Err(BatchError::ArgumentIsDirective(_))));
    assert!(script_for("lumi-g", &hidden).is_ok());
    assert_error("lumi-g", &job(""), &BatchError::NoCommand.to_string());
}

#[test]
fn directives_of_the_user_replace_those_of_the_site() {
    let directives = ["-l filesystems=home", "-l select=2:ncpus=64:ngpus=4", "-m n"];
    let directives = directives.map(str::to_owned).to_vec();
    let job = BatchJob { directives, queue: Some("debug".to_owned()), ..job("./train") };
    let text = script_for("polaris", &job).unwrap();
    let of_kind = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(of_kind("#PBS -l filesystems=home\n".trim_end()), 1, "{text}");
    assert!(!text.contains("eagle"), "{text}");
    assert_eq!(of_kind("#PBS -l select="), 1, "{text}");
    assert!(text.contains("\n#PBS -m n\n"), "{text}");
}

#[test]
fn single_node_jobs_have_no_network_option() {
    let one = BatchJob { nodes: 1, ..job("./train") };
    assert!(!script_for("frontier", &one).unwrap().contains("--network"));
    let network = |name: &str, job: &BatchJob| {
        script_for(name, job).unwrap().matches("\n#SBATCH --network=disable_rdzv_get\n").count()
    };
    for name in ["frontier", "alps"] {
        assert_eq!(network(name, &job("./train")), 1, "{name}");
        let without = vec!["FI_CXI_RDZV_PROTO".to_owned()];
        assert_eq!(network(name, &BatchJob { without, ..job("./train") }), 0, "{name}");
    }
    for name in ["perlmutter", "lumi-g"] {
        assert_eq!(network(name, &job("./train")), 0, "{name}");
    }
}

/// oneCCL needs PMIx, which only processes of mpiexec have.
#[test]
fn ranks_of_aurora_are_started_by_mpiexec() {
    let queue = Some("debug".to_owned());
    let given =
        BatchJob { queue, launch_options: words("--site aurora --without A"), ..job("./a") };
    let text = script_for("aurora", &given).unwrap();
    for line in [
        "eval \"$(regatta env --site aurora --without A || echo exit 1)\"\n",
        "options=$(regatta map --site aurora --format pals) || exit\n",
        "    mpiexec --envall $options regatta launch --site aurora --without A \\\n    -- ./a\n",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    assert!(!text.contains("run-dir"), "{text}");
    // Regatta's own collectives do not use oneCCL.
    let train = BatchJob { command: words("regatta train tiny"), ..given.clone() };
    assert!(!script_for("aurora", &train).unwrap().contains("mpiexec"));
    let without = BatchJob { without: words("CCL_PROCESS_LAUNCHER"), ..given };
    assert!(!script_for("aurora", &without).unwrap().contains("mpiexec"));
}

#[test]
fn run_folder_follows_from_the_command() {
    let named = |folder: &str| RunDir::Named(folder.to_owned());
    for (command, expected) in [
        ("python train.py --run-dir x", RunDir::Numbered),
        ("regatta launch -n 2 ./a", RunDir::Numbered),
        ("regatta launch --run-dir x ./a", named("x")),
        ("regatta launch -- ./a --run-dir x", RunDir::Numbered),
        ("regatta train tiny", RunDir::Resumed),
        ("regatta train --resume=runs/a", named("runs/a")),
        ("/opt/bin/regatta bench all-reduce", RunDir::Numbered),
        ("regatta map --check", RunDir::Unknown),
        ("regatta", RunDir::Unknown),
    ] {
        assert_eq!(run_dir(&job(command)), expected, "{command}");
    }
}

#[test]
fn job_ids_are_parsed() {
    use BatchScheduler::{Flux, Pbs, Slurm};
    for (scheduler, output, id) in [
        (Slurm, "123\n", Some("123")),
        (Slurm, "123;lumi\n", Some("123")),
        (Slurm, "Welcome\n\n123\n", Some("123")),
        (Slurm, "sbatch: error: no\n", None),
        (Slurm, "", None),
        (Pbs, "123456.polaris-pbs-01.hsn.cm\n", Some("123456.polaris-pbs-01.hsn.cm")),
        (Flux, "ƒM7Zq9AKHno\n", Some("ƒM7Zq9AKHno")),
        (Flux, "fM7Zq9AKHno\n", Some("fM7Zq9AKHno")),
        (Flux, "no such queue", None),
    ] {
        assert_eq!(scheduler.parse_job_id(output).as_deref(), id, "{output:?}");
    }
}

#[test]
fn tasks_of_an_array_have_folders_of_their_own() {
    let array = Some("0-9%2".parse().unwrap());
    let job = |command: &str| BatchJob { array, requeue: true, ..job(command) };
    let text = script_for("lumi-g", &job("./train")).unwrap();
    for line in [
        "#SBATCH --array=0-9%2\n",
        "#SBATCH --output=jobs/train/job-%a.out\n",
        "task=$SLURM_ARRAY_TASK_ID\n",
        "while [ -e \"jobs/train/task-$task/run-$run\" ]",
        " --run-dir \"jobs/train/task-$task/run-$run\"",
        "scontrol requeue \"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\"",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    let text = script_for("lumi-g", &job("regatta train tiny")).unwrap();
    assert!(text.contains(" --run-dir \"jobs/train/task-$task/run\""), "{text}");
    let queue = Some("prod".to_owned());
    let text = script_for("polaris", &BatchJob { queue, ..job("./train") }).unwrap();
    assert!(text.contains("#PBS -J 0-9%2\n") && text.contains("task=$PBS_ARRAY_INDEX\n"), "{text}");
    assert_error(
        "lumi-g",
        &job("regatta train --resume=a"),
        &BatchError::SharedRunDir("a".into()).to_string(),
    );
    let flux = BatchJob { requeue: false, ..job("./train") };
    let error = script_for("el-capitan", &flux).unwrap_err().to_string();
    assert!(error.starts_with("Flux has no job arrays; remove --array"), "{error}");
}

/// `PATH` with a folder first.
fn path_with(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

/// A folder with a program that prints its arguments, each terminated by a zero byte, and with a
/// stand-in for flux.
fn folder_with_program() -> (PathBuf, String) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("regatta-batch-{}-{count}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let program = folder.join("print args");
    std::fs::write(&program, "#!/bin/sh\nfor word do printf '%s\\0' \"$word\"; done\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    std::fs::write(folder.join("flux"), "#!/bin/sh\necho f1\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.join("flux"), mode).unwrap();
    let program = program.to_str().unwrap().to_owned();
    (folder, program)
}

/// The arguments with which a script starts regatta.
fn arguments(shell: &str, folder: &Path, script: &str) -> Vec<String> {
    let file = folder.join("job.sh");
    std::fs::write(&file, script).unwrap();
    let syntax = Command::new(shell).arg("-n").arg(&file).output().unwrap();
    assert!(syntax.status.success(), "{syntax:?}\n{script}");
    let mut command = Command::new(shell);
    command.arg(&file).current_dir(folder).env("PBS_O_WORKDIR", folder);
    command.env("PATH", path_with(folder));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}\n{script}");
    let mut words: Vec<String> =
        String::from_utf8(output.stdout).unwrap().split('\0').map(str::to_owned).collect();
    assert_eq!(words.pop().as_deref(), Some(""));
    words
}

/// Any word that can be an argument, with many characters that are special to a shell.
fn any_word() -> impl Strategy<Value = String> {
    let special = "[ -~\n\t]{0,12}";
    prop_oneof![Just(String::new()), special.prop_map(String::from), "[^\0]{0,8}"]
}

const SCHEDULERS: [(BatchScheduler, &str); 3] = [
    (BatchScheduler::Slurm, "lumi-g"),
    (BatchScheduler::Pbs, "polaris"),
    (BatchScheduler::Flux, "el-capitan"),
];

#[test]
fn container_engine_gets_an_environment_file() {
    let (folder, regatta) = folder_with_program();
    std::fs::create_dir_all(folder.join("jobs/train")).unwrap();
    let job = |image: &str| BatchJob {
        container: Some(image.to_owned()),
        regatta: regatta.clone(),
        ..job("python train.py")
    };
    let image = "nvcr.io#nvidia/pytorch:25.11-py3";
    let script = script_for("alps", &job(image)).unwrap();
    let here = folder.to_str().unwrap();
    let environment = format!("--launcher-option=--environment={here}/jobs/train/environment.toml");
    for shell in ["sh", "bash"] {
        let words = arguments(shell, &folder, &script);
        assert_eq!(words[..2], ["launch".to_owned(), environment.clone()]);
        let file = std::fs::read_to_string(folder.join("jobs/train/environment.toml")).unwrap();
        let file: toml::Table = toml::from_str(&file).unwrap();
        assert_eq!((file["image"].as_str(), file["workdir"].as_str()), (Some(image), Some(here)));
        let mounts = [format!("{here}:{here}"), format!("{regatta}:{regatta}")];
        let mounts = toml::Value::from(mounts.to_vec());
        assert_eq!(file["mounts"], mounts);
        let hook = &file["annotations"]["com"]["hooks"]["aws_ofi_nccl"];
        assert_eq!(
            (hook["enabled"].as_str(), hook["variant"].as_str()),
            (Some("true"), Some("cuda-dl"))
        );
    }
    let own = arguments("bash", &folder, &script_for("alps", &job("my env.toml")).unwrap());
    assert_eq!(own[1], format!("--launcher-option=--environment={here}/my env.toml"));
    std::fs::remove_dir_all(folder).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_shell_passes_every_word_unchanged(
        command in prop::collection::vec(any_word(), 1..5),
        option in any_word(),
        scheduler in 0..3usize,
        requeue: bool,
    ) {
        let (scheduler, name) = SCHEDULERS[scheduler];
        let (folder, regatta) = folder_with_program();
        let given = BatchJob {
            requeue: requeue && scheduler != BatchScheduler::Flux,
            queue: Some("q".to_owned()),
            launch_options: vec!["--tee".to_owned(), option.clone()],
            regatta,
            command: command.clone(),
            ..job("x")
        };
        let script = script(scheduler, &given, &site(name));
        let runs_program = body::RunKind::of(&command) == body::RunKind::Program;
        if let Ok(script) = script && runs_program {
            let run_dir = "jobs/train/run-0".to_owned();
            let mut expected = words("launch --tee");
            expected.extend([option, "--run-dir".to_owned(), run_dir, "--".to_owned()]);
            expected.extend(command);
            for shell in ["sh", "bash"] {
                prop_assert_eq!(&arguments(shell, &folder, &script), &expected);
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn quoted_words_parse_to_the_same_words(words in prop::collection::vec(any_word(), 0..8)) {
        let quoted: Vec<String> =
            words.iter().map(|word| regatta_model::shell::quote(word)).collect();
        prop_assert_eq!(shlex::split(&quoted.join(" ")), Some(words));
    }

    #[test]
    fn modules_and_images_are_quoted(module in "[a-z'\" $;]{1,10}", image in "[a-z'\" $;]{1,10}") {
        let given = BatchJob {
            modules: vec![module.clone()],
            container: Some(image.clone()),
            ..job("./train")
        };
        let text = script_for("lumi-g", &given).unwrap();
        let parsed = shlex::split(&text).unwrap();
        prop_assert!(parsed.contains(&module) && parsed.contains(&image), "{}", text);
    }
}

/// The shell functions that stand in for regatta and scontrol: the ranks save on TERM.
const STAND_INS: &str = "#!/bin/sh
case $1 in
requeue) echo \"requeued $2\"; exit ;;
esac
trap 'echo saved; exit 75' TERM
echo started
while :; do sleep 0.05; done
";

/// The output and exit code of a requeued job's script that gets this signal when its ranks run.
fn signalled(signal: &str) -> (String, Option<i32>) {
    let (folder, program) = folder_with_program();
    std::fs::write(&program, STAND_INS).unwrap();
    std::os::unix::fs::symlink(&program, folder.join("scontrol")).unwrap();
    let given = BatchJob { requeue: true, regatta: program, ..job("regatta train tiny") };
    std::fs::write(folder.join("job.sh"), script_for("lumi-g", &given).unwrap()).unwrap();
    let out = folder.join("out");
    let mut child = Command::new("bash")
        .arg("job.sh")
        .current_dir(&folder)
        .env("PATH", path_with(&folder))
        .env("SLURM_JOB_ID", "7")
        .stdout(std::fs::File::create(&out).unwrap())
        .spawn()
        .unwrap();
    while !std::fs::read_to_string(&out).unwrap().contains("started") {
        assert_eq!(child.try_wait().unwrap(), None, "the script ended before its ranks started");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let kill = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let code = child.wait().unwrap().code();
    let text = std::fs::read_to_string(&out).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    (text, code)
}

/// Several times, because the signal may arrive before the script knows its ranks.
#[test]
fn job_is_requeued_at_its_time_limit_but_not_when_cancelled() {
    for _ in 0..10 {
        assert_eq!(signalled("USR1"), ("started\nsaved\nrequeued 7\n".to_owned(), Some(75)));
        assert_eq!(signalled("TERM"), ("started\nsaved\n".to_owned(), Some(75)));
    }
}
