package sharedfaults_test

import (
	"errors"
	"testing"

	"example.com/leakybucket/internal/servers"
	"example.com/leakybucket/shaper"
)

type pgserver struct{ URL string }

func (p *pgserver) Stop(mode string) {}
func (p *pgserver) Start()           {}

const table = "x"

func openPostgres(p plan) (shaper.Bucket, func(), error) { return nil, nil, errors.New("none") }
func startPostgres(t *testing.T) *pgserver               { return &pgserver{} }
func proxyPostgres(t *testing.T, db *pgserver) (string, *servers.Proxy) {
	return "", nil
}
func execute(t *testing.T, db *pgserver, statement string, args ...any) {}
