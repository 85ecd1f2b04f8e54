use super::AgentLauncher::{Flux, Hydra, OpenMpi, Pals, Srun, Ssh};
use super::*;

fn spec<'a>(hosts: &'a [String], bootstrap_file: Option<&'a Path>) -> LaunchSpec<'a> {
    LaunchSpec {
        hosts,
        program: Path::new("/opt/my tools/regatta"),
        bootstrap_file,
        ssh: &[],
        options: &[],
        gres: &Gres::Inherited,
    }
}

fn hosts(text: &str) -> Vec<String> {
    hostlist::expand(text).unwrap()
}

/// Program and arguments.
fn words(command: &LaunchCommand) -> Vec<String> {
    let words = std::iter::once(&command.program).chain(&command.args);
    words.map(|w| w.to_str().unwrap().to_owned()).collect()
}

fn single_command(launcher: AgentLauncher, hosts: &[String]) -> LaunchCommand {
    let bootstrap = (!launcher.bootstraps_via_stdin()).then_some(Path::new("/run/1/boot"));
    let mut all = launcher.commands(&spec(hosts, bootstrap)).unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    let one = all.remove(0);
    assert_eq!(one.hosts, 0..hosts.len());
    assert_eq!(one.bootstrap_on_stdin, launcher.bootstraps_via_stdin());
    one
}

#[test]
fn srun_command_line() {
    let step = single_command(Srun, &hosts("nid[001000-001002]"));
    let wanted = "srun --nodes=3 --ntasks=3 --nodelist=nid[001000-001002] --ntasks-per-node=1 \
                  --distribution=block --overlap --mem=0 --cpu-bind=none --mem-bind=none \
                  --gpu-bind=none --mpi=none --export=ALL --input=all --kill-on-bad-exit=0 --wait=0 \
                  --no-kill";
    let agent = ["/opt/my tools/regatta", "agent", "--boot", "-"];
    let wanted: Vec<&str> = wanted.split_whitespace().chain(agent).collect();
    assert_eq!(words(&step), wanted);
    assert!(step.env_remove.iter().any(|name| name == "SRUN_CPUS_PER_TASK"));
    let removes_job = step.env_remove.iter().any(|name| name.starts_with("SLURM_JOB"));
    assert!(!removes_job, "srun needs the job");
}

#[test]
fn heterogeneous_nodes_get_one_step_each() {
    let hosts = hosts("n[1-3]");
    let gres_options = |gres: &Gres| -> Vec<(Range<usize>, Vec<String>)> {
        let all = Srun.commands(&LaunchSpec { gres, ..spec(&hosts, None) }).unwrap();
        let is_gres = |w: &String| w.starts_with("--gres") || w.starts_with("--gpus");
        let gres = |c: &LaunchCommand| words(c).into_iter().filter(is_gres).collect();
        all.iter().map(|command| (command.hosts.clone(), gres(command))).collect()
    };
    let same = Gres::Uniform("gpu:4".to_owned());
    assert_eq!(gres_options(&same), [(0..3, vec!["--gres=gpu:4".to_owned()])]);
    let each = Gres::PerNode(vec![Some("gpu:2".to_owned()), None, Some("gpu:a100:1".to_owned())]);
    let wanted = [
        (0..1, vec!["--gpus=2".to_owned()]),
        (1..2, vec!["--gres=none".to_owned()]),
        (2..3, vec!["--gpus=a100:1".to_owned()]),
    ];
    assert_eq!(gres_options(&each), wanted);
    let all = Srun.commands(&LaunchSpec { gres: &each, ..spec(&hosts, None) }).unwrap();
    assert!(words(&all[2]).contains(&"--nodelist=n3".to_owned()));
}

#[test]
fn further_options_come_before_the_agent() {
    let (hosts, boot) = (hosts("n[1-2]"), Path::new("/run/1/boot"));
    let options = ["--network=disable_rdzv_get".to_owned()];
    for launcher in [Srun, Pals, Hydra, OpenMpi, Flux, Ssh] {
        let spec = LaunchSpec { options: &options, ..spec(&hosts, Some(boot)) };
        for command in launcher.commands(&spec).unwrap() {
            let words = words(&command);
            let at = words.iter().position(|word| *word == options[0]).unwrap();
            let agent = words.iter().position(|word| word.contains("my tools")).unwrap();
            assert!(at < agent, "{launcher}: {words:?}");
        }
    }
}

#[test]
fn mpiexec_command_lines() {
    let agent = ["/opt/my tools/regatta", "agent", "--boot", "/run/1/boot"];
    let cases = [
        (
            Pals,
            "mpiexec -n 2 --ppn 1 --hostfile /run/1/boot.hosts --cpu-bind none --pmi none \
             --envall --no-abort-on-failure",
            "x3b\nx1a\n",
        ),
        (
            Hydra,
            "mpiexec -n 2 -ppn 1 -f /run/1/boot.hosts -bind-to none -disable-auto-cleanup",
            "x3b:1\nx1a:1\n",
        ),
        (
            OpenMpi,
            "mpiexec -n 2 --map-by ppr:1:node --hostfile /run/1/boot.hosts --bind-to none --stdin \
             none --enable-recovery",
            "x3b slots=1\nx1a slots=1\n",
        ),
    ];
    for (launcher, options, file) in cases {
        let one = single_command(launcher, &hosts("x3b,x1a"));
        let wanted: Vec<&str> = options.split_whitespace().chain(agent).collect();
        assert_eq!(words(&one), wanted);
        assert_eq!(one.hostfile, Some(("/run/1/boot.hosts".into(), file.to_owned())));
    }
}

#[test]
fn flux_command_line() {
    let wanted = "flux run --nodes=2 --ntasks=2 --requires=host:el[3-4] --exclusive \
                  -o cpu-affinity=off -o gpu-affinity=off -o pmi=off -o exit-timeout=none";
    let agent = ["/opt/my tools/regatta", "agent", "--boot", "/run/1/boot"];
    let wanted: Vec<&str> = wanted.split_whitespace().chain(agent).collect();
    assert_eq!(words(&single_command(Flux, &hosts("el[3-4]"))), wanted);
}

#[test]
fn ssh_command_per_host() {
    let hosts = hosts("a,-oProxyCommand=evil");
    let all = Ssh.commands(&spec(&hosts, None)).unwrap();
    assert_eq!(all.len(), 2);
    let options = "ssh -T -x -oBatchMode=yes -oConnectTimeout=15 -oLogLevel=ERROR -- a";
    let remote = "exec '/opt/my tools/regatta' agent --boot - --node 0";
    let wanted: Vec<&str> = options.split_whitespace().chain([remote]).collect();
    assert_eq!(words(&all[0]), wanted);
    let second = words(&all[1]);
    // A host name is not parsed as an option.
    assert_eq!(second[6..8], ["--", "-oProxyCommand=evil"]);
    assert!(second[8].ends_with("--node 1"));
    assert_eq!((all[1].hosts.clone(), all[1].bootstrap_on_stdin), (1..2, true));
    let ssh = ["/usr/bin/myssh", "-p", "2222"].map(str::to_owned);
    let own = Ssh.commands(&LaunchSpec { ssh: &ssh, ..spec(&hosts, None) }).unwrap();
    assert_eq!(words(&own[0])[..4], ["/usr/bin/myssh", "-p", "2222", "-T"]);
}

#[test]
fn remote_command_is_quoted_for_the_shell() {
    let hosts = hosts("a");
    let program = Path::new("/opt/it's \"$HOME\" `x`/re gatta\\");
    let all = Ssh.commands(&LaunchSpec { program, ..spec(&hosts, None) }).unwrap();
    let back = shlex::split(words(&all[0]).last().unwrap()).unwrap();
    assert_eq!(back[1], program.to_str().unwrap());
    assert_eq!(back[2..], ["agent", "--boot", "-", "--node", "0"]);
}

#[test]
fn mpiexec_is_identified_by_its_version() {
    let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n";
    let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307\n";
    let known = [
        (hydra, Hydra),
        (intel, Hydra),
        ("mpiexec (OpenRTE) 4.1.4\n\nReport bugs to ...", OpenMpi),
        ("mpirun (Open MPI) 5.0.3\n", OpenMpi),
        ("mpiexec version 1.2.12 revision 4f1b2\n", Pals),
    ];
    for (text, launcher) in known {
        assert_eq!(AgentLauncher::detect_mpiexec(text), Some(launcher), "{text}");
        let pbs = AgentLauncher::for_scheduler(Scheduler::Pbs, || Some(text.to_owned()));
        assert_eq!(pbs, Ok(launcher));
    }
    assert_eq!(AgentLauncher::detect_mpiexec("mpiexec version of my own\n"), None);
    assert_eq!(AgentLauncher::detect_mpiexec(""), None);
}

#[test]
fn launcher_follows_the_scheduler() {
    let not_called = || -> Option<String> { panic!("mpiexec must not be queried") };
    let cases = [
        (Scheduler::Slurm, Ok(Srun)),
        (Scheduler::Flux, Ok(Flux)),
        (Scheduler::Hostfile, Ok(Ssh)),
        (Scheduler::None, Err(LauncherError::NoNodes)),
    ];
    for (scheduler, expected) in cases {
        assert_eq!(AgentLauncher::for_scheduler(scheduler, not_called), expected);
    }
    let on_pbs = |version: Option<&str>| {
        AgentLauncher::for_scheduler(Scheduler::Pbs, || version.map(str::to_owned))
    };
    assert_eq!(on_pbs(None), Err(LauncherError::NoMpiexec));
    let unknown = on_pbs(Some("my mpi\nmore"));
    assert!(unknown.unwrap_err().to_string().contains("\"my mpi\""));
}

#[test]
fn missing_bootstrap_file_is_an_error() {
    let hosts = hosts("a,b");
    for launcher in [Pals, Hydra, OpenMpi, Flux] {
        let error = launcher.commands(&spec(&hosts, None)).unwrap_err();
        assert_eq!(error, LauncherError::NoBootstrapFile(launcher));
    }
    assert_eq!(Srun.commands(&spec(&[], None)), Ok(Vec::new()));
}
