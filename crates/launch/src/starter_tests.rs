use super::*;

fn agents<'a>(hosts: &'a [String], boot_file: Option<&'a Path>) -> Agents<'a> {
    Agents {
        hosts,
        program: Path::new("/opt/my tools/regatta"),
        boot_file,
        ssh: &[],
        gres: &Gres::Inherited,
    }
}

fn hosts(text: &str) -> Vec<String> {
    hostlist::expand(text).unwrap()
}

/// The commands, a word a line.
fn words(invocation: &Invocation) -> Vec<String> {
    let words = std::iter::once(&invocation.program).chain(&invocation.args);
    words.map(|w| w.to_str().unwrap().to_owned()).collect()
}

fn only(starter: Starter, hosts: &[String]) -> Invocation {
    let boot = (!starter.boots_by_stdin()).then_some(Path::new("/run/1/boot"));
    let mut all = starter.invocations(&agents(hosts, boot)).unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    let one = all.remove(0);
    assert_eq!(one.hosts, 0..hosts.len());
    assert_eq!(one.takes_boot, starter.boots_by_stdin());
    one
}

#[test]
fn srun() {
    let step = only(Starter::Srun, &hosts("nid[001000-001002]"));
    let wanted = "srun --nodes=3 --ntasks=3 --nodelist=nid[001000-001002] --ntasks-per-node=1 \
                  --distribution=block --overlap --mem=0 --cpu-bind=none --mem-bind=none \
                  --gpu-bind=none --mpi=none --export=ALL --input=all --kill-on-bad-exit=0 --wait=0 \
                  --no-kill";
    let agent = ["/opt/my tools/regatta", "agent", "--boot", "-"];
    let wanted: Vec<&str> = wanted.split_whitespace().chain(agent).collect();
    assert_eq!(words(&step), wanted);
    assert!(step.unset.iter().any(|name| name == "SRUN_CPUS_PER_TASK"));
    assert!(!step.unset.iter().any(|name| name.starts_with("SLURM_JOB")), "srun needs the job");
}

#[test]
fn uneven_nodes_are_steps_of_their_own() {
    let hosts = hosts("n[1-3]");
    let asked = |gres: &Gres| -> Vec<(Range<usize>, Vec<String>)> {
        let all = Starter::Srun.invocations(&Agents { gres, ..agents(&hosts, None) }).unwrap();
        let ask = |w: &String| w.starts_with("--gres") || w.starts_with("--gpus");
        all.iter().map(|i| (i.hosts.clone(), words(i).into_iter().filter(ask).collect())).collect()
    };
    let same = Gres::Same("gpu:4".to_owned());
    assert_eq!(asked(&same), [(0..3, vec!["--gres=gpu:4".to_owned()])]);
    let each = Gres::Each(vec![Some("gpu:2".to_owned()), None, Some("gpu:a100:1".to_owned())]);
    let wanted = [
        (0..1, vec!["--gpus=2".to_owned()]),
        (1..2, vec!["--gres=none".to_owned()]),
        (2..3, vec!["--gpus=a100:1".to_owned()]),
    ];
    assert_eq!(asked(&each), wanted);
    let all = Starter::Srun.invocations(&Agents { gres: &each, ..agents(&hosts, None) }).unwrap();
    assert!(words(&all[2]).contains(&"--nodelist=n3".to_owned()));
}

#[test]
fn mpiexec_of_each_kind() {
    let agent = ["/opt/my tools/regatta", "agent", "--boot", "/run/1/boot"];
    let cases = [
        (
            Starter::Pals,
            "mpiexec -n 2 --ppn 1 --hostfile /run/1/boot.hosts --cpu-bind none --pmi none \
             --envall --no-abort-on-failure",
            "x3b\nx1a\n",
        ),
        (
            Starter::Hydra,
            "mpiexec -n 2 -ppn 1 -f /run/1/boot.hosts -bind-to none -disable-auto-cleanup",
            "x3b:1\nx1a:1\n",
        ),
        (
            Starter::OpenMpi,
            "mpiexec -n 2 --map-by ppr:1:node --hostfile /run/1/boot.hosts --bind-to none --stdin \
             none --enable-recovery",
            "x3b slots=1\nx1a slots=1\n",
        ),
    ];
    for (starter, options, file) in cases {
        let one = only(starter, &hosts("x3b,x1a"));
        let wanted: Vec<&str> = options.split_whitespace().chain(agent).collect();
        assert_eq!(words(&one), wanted);
        assert_eq!(one.hostfile, Some(("/run/1/boot.hosts".into(), file.to_owned())));
    }
}

#[test]
fn flux() {
    let wanted = "flux run --nodes=2 --ntasks=2 --requires=host:el[3-4] --exclusive \
                  -o cpu-affinity=off -o gpu-affinity=off -o pmi=off -o exit-timeout=none";
    let agent = ["/opt/my tools/regatta", "agent", "--boot", "/run/1/boot"];
    let wanted: Vec<&str> = wanted.split_whitespace().chain(agent).collect();
    assert_eq!(words(&only(Starter::Flux, &hosts("el[3-4]"))), wanted);
}

#[test]
fn ssh_to_each_host() {
    let hosts = hosts("a,-oProxyCommand=evil");
    let all = Starter::Ssh.invocations(&agents(&hosts, None)).unwrap();
    assert_eq!(all.len(), 2);
    let options = "ssh -T -x -oBatchMode=yes -oConnectTimeout=15 -oLogLevel=ERROR -- a";
    let remote = "exec '/opt/my tools/regatta' agent --boot - --node 0";
    let wanted: Vec<&str> = options.split_whitespace().chain([remote]).collect();
    assert_eq!(words(&all[0]), wanted);
    let second = words(&all[1]);
    assert_eq!(second[6..8], ["--", "-oProxyCommand=evil"], "a host is never an option");
    assert!(second[8].ends_with("--node 1"));
    assert_eq!((all[1].hosts.clone(), all[1].takes_boot), (1..2, true));
    let ssh = ["/usr/bin/myssh", "-p", "2222"].map(str::to_owned);
    let own = Starter::Ssh.invocations(&Agents { ssh: &ssh, ..agents(&hosts, None) }).unwrap();
    assert_eq!(words(&own[0])[..4], ["/usr/bin/myssh", "-p", "2222", "-T"]);
}

#[test]
fn the_remote_words_come_back_from_a_shell() {
    let hosts = hosts("a");
    let program = Path::new("/opt/it's \"$HOME\" `x`/re gatta\\");
    let all = Starter::Ssh.invocations(&Agents { program, ..agents(&hosts, None) }).unwrap();
    let back = shlex::split(words(&all[0]).last().unwrap()).unwrap();
    assert_eq!(back[1], program.to_str().unwrap());
    assert_eq!(back[2..], ["agent", "--boot", "-", "--node", "0"]);
}

#[test]
fn kinds_of_mpiexec() {
    let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n";
    let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307\n";
    let known = [
        (hydra, Starter::Hydra),
        (intel, Starter::Hydra),
        ("mpiexec (OpenRTE) 4.1.4\n\nReport bugs to ...", Starter::OpenMpi),
        ("mpirun (Open MPI) 5.0.3\n", Starter::OpenMpi),
        ("mpiexec version 1.2.12 revision 4f1b2\n", Starter::Pals),
    ];
    for (text, starter) in known {
        assert_eq!(Starter::of_mpiexec(text), Some(starter), "{text}");
        let pbs = Starter::choose(Scheduler::Pbs, || Some(text.to_owned()));
        assert_eq!(pbs, Ok(starter));
    }
    assert_eq!(Starter::of_mpiexec("mpiexec version of my own\n"), None);
    assert_eq!(Starter::of_mpiexec(""), None);
}

#[test]
fn the_scheduler_decides() {
    let unasked = || -> Option<String> { panic!("mpiexec does not matter here") };
    assert_eq!(Starter::choose(Scheduler::Slurm, unasked), Ok(Starter::Srun));
    assert_eq!(Starter::choose(Scheduler::Flux, unasked), Ok(Starter::Flux));
    assert_eq!(Starter::choose(Scheduler::Hostfile, unasked), Ok(Starter::Ssh));
    assert_eq!(Starter::choose(Scheduler::None, unasked), Err(StarterError::NoNodes));
    assert_eq!(Starter::choose(Scheduler::Pbs, || None), Err(StarterError::NoMpiexec));
    let strange = Starter::choose(Scheduler::Pbs, || Some("my mpi\nmore".to_owned()));
    assert!(strange.unwrap_err().to_string().contains("\"my mpi\""));
}

#[test]
fn no_boot_file_is_refused_where_one_is_needed() {
    let hosts = hosts("a,b");
    for starter in [Starter::Pals, Starter::Hydra, Starter::OpenMpi, Starter::Flux] {
        let refused = starter.invocations(&agents(&hosts, None)).unwrap_err();
        assert_eq!(refused, StarterError::NoBootFile(starter));
    }
    assert_eq!(Starter::Srun.invocations(&agents(&[], None)), Ok(Vec::new()));
}
