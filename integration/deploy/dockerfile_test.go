package deploy_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A dockerfile is a Dockerfile as far as the tests need it: enough of the format for
// the few instructions in it. No engine is needed to read it.
type dockerfile struct {
	build      []string          // the commands of the stage that builds
	copies     map[string]string // the folders of the image, by those of /out
	owned      map[string]bool   // those of the image that belong to the user
	env        []string
	user       string
	entrypoint []string // with the default arguments
}

// readDockerfile reads the Dockerfile. An instruction that it does not know is an error, so
// that none is forgotten.
func readDockerfile(t *testing.T) (d dockerfile) {
	d.copies, d.owned = map[string]string{}, map[string]bool{}
	stages := 0
	for line := range strings.Lines(read(t, "Dockerfile")) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		require.Falsef(t, strings.HasSuffix(line, `\`), "%q goes on in the next line", line)
		instruction, rest, _ := strings.Cut(line, " ")
		fields := strings.Fields(rest)
		switch {
		case instruction == "FROM":
			stages++
			if stages == 2 {
				require.Equal(t, []string{"scratch"}, fields)
			}
		case stages == 1 && instruction == "RUN":
			d.build = append(d.build, rest)
		case stages == 1 && (line == "WORKDIR /src" || line == "COPY . ."):
		case stages == 2 && instruction == "COPY" && fields[0] == "--from=build":
			from, to := fields[len(fields)-2], fields[len(fields)-1]
			d.copies[from] = to
			d.owned[to] = len(fields) == 4 && fields[1] == "--chown=65532:65532"
		case stages == 2 && instruction == "ENV":
			d.env = fields
		case stages == 2 && instruction == "USER":
			d.user = rest
		case stages == 2 && (instruction == "ENTRYPOINT" || instruction == "CMD"):
			var words []string
			require.NoError(t, json.Unmarshal([]byte(rest), &words), line)
			d.entrypoint = append(d.entrypoint, words...)
		case stages == 2 && (instruction == "VOLUME" || instruction == "EXPOSE" || instruction == "STOPSIGNAL"):
		default:
			require.FailNowf(t, "the test does not know this instruction", "%q", line)
		}
	}
	require.Equal(t, 2, stages)
	return d
}

func TestImageRunsAsAUserWithoutRights(t *testing.T) {
	d := readDockerfile(t)
	require.Equal(t, "65532:65532", d.user)
	require.Equal(t, map[string]bool{"/usr": false, "/etc": false, "/data": true}, d.owned, "what the user may write to")
	require.Contains(t, d.env, "XDG_DATA_HOME=/data")
	require.Equal(t, []string{"/usr/bin/shaperd", "run", "--config", "/etc/shaperd/Caddyfile"}, d.entrypoint)
}
