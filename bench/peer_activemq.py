"""ActiveMQ as installed by Debian, over its STOMP connector, with KahaDB, which syncs each persistent send."""

import contextlib
import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Target
from bench.peer import Subject, free_port, started
from bench.stomp_load import Account
from bench.wire import BenchError
from bench.workloads import run_groups

JARS = "/usr/share/activemq/lib"
OPTIONAL = ["activemq-spring.jar", "spring3-*.jar", "xbean-spring.jar"]
LOGGING = ["/usr/share/java/commons-logging.jar", "/usr/share/java/slf4j-nop.jar"]
CONFIG = """\
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
  http://www.springframework.org/schema/beans/spring-beans-2.0.xsd
  http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" useJmx="false" brokerName="localhost"
      dataDirectory="{folder}/data">
    <persistenceAdapter><kahaDB directory="{folder}/data/kahadb"/></persistenceAdapter>
    <transportConnectors><transportConnector name="stomp" uri="stomp+nio://127.0.0.1:{port}"/></transportConnectors>
  </broker>
</beans>
"""
WORKLOADS = frozenset({"send-1", "send-1000", "drain", "pipe", "pingpong", "producers-16"})


@contextlib.contextmanager
def running(program: str, folder: Path) -> Iterator[list[Subject]]:
    """`program` only shows that ActiveMQ is installed. It is not run, because it requires the system's folders."""
    java = shutil.which("java")
    if not java:
        raise BenchError("ActiveMQ needs java")
    address = ("127.0.0.1", free_port())
    config = folder / "activemq.xml"
    config.write_text(CONFIG.format(folder=folder, port=address[1]))
    optional = [jar for pattern in OPTIONAL for jar in glob.glob(f"{JARS}/optional/{pattern}")]
    classpath = os.pathsep.join([*glob.glob(f"{JARS}/*.jar"), *optional, *LOGGING])
    main = ["org.apache.activemq.console.Main", "start", f"xbean:file:{config}"]
    home = [f"-Dactivemq.home={folder}", f"-Dactivemq.base={folder}", f"-Djava.io.tmpdir={folder}"]
    with started([java, "-Xms64M", "-Xmx1G", *home, "-cp", classpath, *main], folder, address) as process:
        account = Account(address, None, "localhost", b"persistent:true\n", b"activemq.prefetchSize:1000\n")
        target = Target("ActiveMQ KahaDB", process, account)
        yield [Subject(target.name, lambda size, plan: run_groups(target, set(WORKLOADS), size, plan), WORKLOADS)]
