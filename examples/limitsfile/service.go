package main

import (
	"fmt"
	"log"
	"net/http"
	"time"

	"example.com/leakybucket/config"
	"example.com/leakybucket/shaper"
)

// A service is a site behind the limits of a file.
type service struct {
	limits      *config.File
	live, trial *shaper.Group[string]
}

// newService opens the files. The caller must close the service.
func newService(files ...string) (*service, error) {
	limits, err := config.Open(files...)
	if err != nil {
		return nil, err // all mistakes of all files, with their lines
	}
	live, err := shaper.NewGroup(limits.Limits, shaper.WithName("live"))
	if err != nil {
		return nil, err
	}
	// It lets everything pass and keeps account of the candidates' verdicts.
	trial, err := shaper.NewGroup(limits.Candidate, shaper.WithName("trial"), shaper.WithDryRun())
	if err != nil {
		return nil, err
	}
	limits.OnChange(func(rules *config.Rules) {
		live.Reload()
		trial.Reload()
		log.Print("new limits are in force")
	})
	return &service{limits, live, trial}, nil
}

func (s *service) close() {
	_ = s.limits.Close()
	_ = s.live.Close()
	_ = s.trial.Close()
}

// site returns the handler for everybody.
func (s *service) site() http.Handler {
	key := shaper.By(action, shaper.ByClientIP()) // api/192.0.2.3
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v, ok := shaper.VerdictOf(r.Context()); ok {
			fmt.Fprintf(w, "served; the candidate says %v\n", v)
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, err := key(r)
		if err != nil {
			shaper.WriteError(w, r, err)
			return
		}
		// The trial comes first: behind the live limit it would only see what that lets go.
		both := shaper.Chain(s.trial.Limiter(k), s.live.Limiter(k))
		shaper.Middleware(both, shaper.WithVerdictHeader("Trial"))(page).ServeHTTP(w, r)
	})
}

// action is the first part of a key. There are two, whatever a client sends: a client
// that could make up the first part would pick its own rule.
func action(r *http.Request) (string, error) {
	if r.URL.Path == "/login" {
		return "login", nil
	}
	return "api", nil
}

// report is the operator's page.
func (s *service) report(w http.ResponseWriter, _ *http.Request) {
	st := s.limits.Status()
	fmt.Fprintf(w, "limits in force since %s, %d changes\n", st.Loaded.Format(time.DateTime), st.Reloads)
	if st.Err != nil {
		fmt.Fprintf(w, "the files at %s are not in force:\n%v\n", st.FailedAt.Format(time.DateTime), st.Err)
	}
	for _, group := range []*shaper.Group[string]{s.live, s.trial} {
		all := group.Stats()
		fmt.Fprintf(w, "\n%s: %d left, %d refused, %d wait\n", all.Name, all.Departed, all.Refused, all.Waiting)
		for _, limited := range group.Top(5) {
			rule, _ := s.limits.Rules().Explain(limited.Key)
			fmt.Fprintf(w, "  %s met its limit %d times (%s:%d)\n", limited.Key, limited.Count, rule.File, rule.Line)
		}
	}
}
