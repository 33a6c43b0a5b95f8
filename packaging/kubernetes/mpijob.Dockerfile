# Image of mpijob.yaml: convoy with an ssh server that its user can start. From the project's root, after `convoy`:
#   docker build -f packaging/kubernetes/mpijob.Dockerfile -t convoy-ssh .
# The MPI operator mounts the keys of a job at /work/.ssh, in the home of the user 10001. Its private key is the host key
# too. Pods know each other by this key, so the names of hosts are not checked.
FROM convoy
USER root
RUN apt-get update -q && apt-get install -q -y --no-install-recommends openssh-server openssh-client \
    && rm -rf /var/lib/apt/lists/* && mkdir -p /run/sshd
RUN printf '%s\n' 'Port 2222' 'HostKey /work/.ssh/id_rsa' 'AuthorizedKeysFile /work/.ssh/authorized_keys' \
      'PidFile none' 'StrictModes no' 'UsePAM no' > /etc/ssh/convoy_server \
    && printf '%s\n' 'Host *' '  Port 2222' '  StrictHostKeyChecking no' '  UserKnownHostsFile /dev/null' \
      '  LogLevel ERROR' > /etc/ssh/ssh_config.d/convoy.conf
USER 10001
# The manifest names the commands of launcher and workers.
ENTRYPOINT ["/usr/bin/tini", "-g", "--"]
